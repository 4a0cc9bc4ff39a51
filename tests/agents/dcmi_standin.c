/* A stand-in for libdcmi.so: the functions of Ascend's DCMI that the agent calls, with the structures of its header
 * dcmi_interface_api.h. Every call looks at the file that DCMI_STANDIN names; its lines are "key value": cards (each has one
 * chip and one controller), init, and of card N "N.name", "N.logic", "N.bus", "N.hbm" and "N.used" (MB), "N.ddr" (MB),
 * "N.ddruse" (per cent), "N.power" (0.1 W), "N.heat", "N.use", "N.health", "N.double" (errors), "N.pid". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORT = -8255, INVALID = -8001 };
static char *text(int card, const char *name, char *out) {
    char key[64], line[256];
    FILE *file = fopen(getenv("DCMI_STANDIN") ? getenv("DCMI_STANDIN") : "", "r");
    card < 0 ? snprintf(key, sizeof key, "%s ", name) : snprintf(key, sizeof key, "%d.%s ", card, name);
    *out = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key))) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, 200, "%.199s", line + strlen(key));
        }
    if (file) fclose(file);
    return out;
}
static long long number(int card, const char *name, long long otherwise) {
    char found[200];
    return *text(card, name, found) ? atoll(found) : otherwise;
}
static int told(int card, const char *name, int *out) {
    char found[200];
    if (!*text(card, name, found)) return NOT_SUPPORT;
    *out = atoi(found);
    return OK;
}

int dcmi_init(void) { return number(-1, "init", OK); }
/* Ids of cards need not begin at 0. */
int dcmi_get_card_list(int *count, int *list, int length) {
    *count = number(-1, "cards", 0);
    for (int at = 0; at < *count && at < length; at++) list[at] = at + 1;
    return OK;
}
int dcmi_get_device_num_in_card(int card, int *count) { (void)card; *count = 2; return OK; }
int dcmi_get_device_type(int card, int device, int *type) { (void)card; *type = device; return OK; }
int dcmi_get_device_logic_id(int *logic, int card, int device) { return device ? INVALID : told(card, "logic", logic); }
int dcmi_get_driver_version(char *out, unsigned size) { snprintf(out, size, "24.1.rc2"); return OK; }
struct chip { unsigned char type[32], name[32], ver[32]; unsigned cores; };
int dcmi_get_device_chip_info(int card, int device, struct chip *out) {
    char word[200];
    memset(out, 0xee, sizeof *out);
    snprintf((char *)out->type, 32, "Ascend");
    snprintf((char *)out->name, 32, "%.31s", *text(card, "name", word) ? word : "910B4");
    return device ? INVALID : OK;
}
struct pcie { unsigned vender, subvender, device, subdevice; int domain; unsigned bus, slot, function; unsigned char reserve[32]; };
int dcmi_get_device_pcie_info_v2(int card, int device, struct pcie *out) {
    *out = (struct pcie){0x19e5, 0x200, 0xd802, 0x100, 0, number(card, "bus", 0xc0 + card), 0, 0, {0}};
    return device ? INVALID : OK;
}
int dcmi_get_device_health(int card, int device, unsigned *out) { *out = number(card, "health", 0); return device ? INVALID : OK; }
int dcmi_get_device_power_info(int card, int device, int *out) { return device ? INVALID : told(card, "power", out); }
int dcmi_get_device_temperature(int card, int device, int *out) { return device ? INVALID : told(card, "heat", out); }
int dcmi_get_device_utilization_rate(int card, int device, int kind, unsigned *out) {
    return device || kind != 2 ? INVALID : told(card, "use", (int *)out);
}
int dcmi_get_device_frequency(int card, int device, int kind, unsigned *out) {
    (void)card, *out = 1800;
    return device || kind != 7 ? INVALID : OK;
}
struct hbm { unsigned long long size; unsigned freq; unsigned long long usage; int temp; unsigned bandwidth; };
int dcmi_get_device_hbm_info(int card, int device, struct hbm *out) {
    memset(out, 0xee, sizeof *out);
    out->size = number(card, "hbm", 0), out->usage = number(card, "used", 0);
    return device ? INVALID : out->size ? OK : NOT_SUPPORT;
}
struct memory {
    unsigned long long size, available; unsigned freq; unsigned long hugepagesize, total, free; unsigned utiliza;
    unsigned char reserve[60];
};
int dcmi_get_device_memory_info_v3(int card, int device, struct memory *out) {
    memset(out, 0xee, sizeof *out);
    out->size = number(card, "ddr", 0), out->utiliza = number(card, "ddruse", 0);
    return device ? INVALID : OK;
}
struct ecc { int enable; unsigned single, dual, total_single, total_dual, isolated, isolated_dual; };
int dcmi_get_device_ecc_info(int card, int device, int kind, struct ecc *out) {
    int wanted = number(card, "hbm", 0) ? 2 : 0;
    *out = (struct ecc){1, 3, number(card, "double", 0), 33, 44, 5, 6};
    return device || kind != wanted ? INVALID : OK;
}
struct process { int pid; unsigned long memory; };
int dcmi_get_device_resource_info(int card, int device, struct process *out, int *count) {
    int pid = number(card, "pid", 0);
    *count = pid ? 2 : 0;
    if (pid) out[0] = (struct process){pid, 1 << 30}, out[1] = (struct process){0, 0};
    return device ? INVALID : OK;
}
