/* A stand-in for libmtml.so: the functions of Moore Threads' MTML that the agent calls, with the signatures of mtml.h. Every
 * call looks at the file that MTML_STANDIN names; its lines are "key value": count, init, and of card N "N.uuid", "N.sbdf",
 * "N.power" (mW), "N.use", "N.heat", "N.total", "N.used". What is not there is not told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 3, NOT_SUPPORTED = 6 };
typedef struct { int card, kind; } handle_t;
static handle_t library = {-1, 0}, parts[8][3];

static int words(int card, const char *name, char *out, unsigned size) {
    char key[64], line[256];
    int state = NOT_SUPPORTED;
    FILE *file = fopen(getenv("MTML_STANDIN") ? getenv("MTML_STANDIN") : "", "r");
    card < 0 ? snprintf(key, sizeof key, "%s ", name) : snprintf(key, sizeof key, "%d.%s ", card, name);
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key))) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", line + strlen(key));
            state = SUCCESS;
        }
    if (file) fclose(file);
    return state;
}
static int number(int card, const char *name, unsigned long long *out) {
    char found[200];
    int state = words(card, name, found, sizeof found);
    if (!state) *out = strtoull(found, NULL, 0);
    return state;
}
static int small(handle_t *handle, int kind, const char *name, unsigned *out) {
    unsigned long long found = 0;
    int state = handle->kind == kind ? number(handle->card, name, &found) : INVALID;
    *out = found;
    return state;
}
static int part(handle_t *card, int kind, handle_t **out) {
    parts[card->card][kind] = (handle_t){card->card, kind};
    *out = &parts[card->card][kind];
    return SUCCESS;
}

int mtmlLibraryInit(handle_t **out) {
    unsigned long long state = SUCCESS;
    number(-1, "init", &state);
    *out = &library;
    return state;
}
int mtmlLibraryCountDevice(handle_t *own, unsigned *out) {
    unsigned long long found = 0;
    number(-1, "count", &found);
    *out = found;
    return own == &library ? SUCCESS : INVALID;
}
int mtmlLibraryInitSystem(handle_t *own, handle_t **out) { *out = own; return SUCCESS; }
int mtmlSystemGetDriverVersion(handle_t *system, char *out, unsigned size) {
    (void)system;
    snprintf(out, size, "3.1.0");
    return SUCCESS;
}
int mtmlLibraryInitDeviceByIndex(handle_t *own, unsigned index, handle_t **out) {
    handle_t card = {(int)index, 0};
    return own == &library && index < 8 ? part(&card, 0, out) : INVALID;
}
int mtmlDeviceInitGpu(handle_t *card, handle_t **out) { return part(card, 1, out); }
int mtmlDeviceInitMemory(handle_t *card, handle_t **out) { return part(card, 2, out); }
int mtmlDeviceGetUUID(handle_t *card, char *out, unsigned size) { return words(card->card, "uuid", out, size); }
int mtmlDeviceGetName(handle_t *card, char *out, unsigned size) {
    (void)card;
    snprintf(out, size, "MTT S4000");
    return SUCCESS;
}
typedef struct {
    char sbdf[32]; unsigned segment, bus, device, pciDeviceId, pciSubsystemId, busWidth; float maxSpeed, curSpeed;
    unsigned maxWidth, curWidth, maxGen, curGen; int rsvd[6];
} pci_t;
int mtmlDeviceGetPciInfo(handle_t *card, pci_t *out) {
    memset(out, 0xee, sizeof *out);
    return words(card->card, "sbdf", out->sbdf, sizeof out->sbdf);
}
int mtmlDeviceGetPowerUsage(handle_t *card, unsigned *out) { return small(card, 0, "power", out); }
int mtmlGpuGetUtilization(handle_t *core, unsigned *out) { return small(core, 1, "use", out); }
int mtmlGpuGetTemperature(handle_t *core, unsigned *out) { return small(core, 1, "heat", out); }
int mtmlGpuGetClock(handle_t *core, unsigned *out) { *out = 1750; return core->kind == 1 ? SUCCESS : INVALID; }
int mtmlMemoryGetTotal(handle_t *memory, unsigned long long *out) { return memory->kind == 2 ? number(memory->card, "total", out) : INVALID; }
int mtmlMemoryGetUsed(handle_t *memory, unsigned long long *out) { return memory->kind == 2 ? number(memory->card, "used", out) : INVALID; }
