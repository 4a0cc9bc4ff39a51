/* A stand-in for libamd_smi.so, and with -DELDER for librocm_smi64.so: the functions that the agent calls, with the
 * signatures and structures of amdsmi.h (ROCm 7.0) and rocm_smi.h. Every call looks at the file that AMDSMI_STANDIN names;
 * its lines are "key value": count, init, and of card N "N.bdf", "N.total", "N.used", "N.use", "N.heat" (degrees),
 * "N.energy" (steps of 15.3 uJ), "N.corrected", "N.uncorrected", "N.partition", "N.memory_partition". What is not there is
 * not told. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVAL = 1, NOT_SUPPORTED = 2 };
static char *text(long card, const char *name, char *out) {
    char key[64], line[256];
    FILE *file = fopen(getenv("AMDSMI_STANDIN") ? getenv("AMDSMI_STANDIN") : "", "r");
    card < 0 ? snprintf(key, sizeof key, "%s ", name) : snprintf(key, sizeof key, "%ld.%s ", card, name);
    *out = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key))) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, 200, "%.199s", line + strlen(key));
        }
    if (file) fclose(file);
    return out;
}
static int number(long card, const char *name, uint64_t *out) {
    char found[200];
    if (!*text(card, name, found)) return NOT_SUPPORTED;
    *out = strtoull(found, NULL, 0);
    return SUCCESS;
}
static uint64_t known(long card, const char *name, uint64_t otherwise) {
    number(card, name, &otherwise);
    return otherwise;
}
static int words(long card, const char *name, char *out, size_t size) {
    char found[200];
    if (!*text(card, name, found)) return NOT_SUPPORTED;
    snprintf(out, size, "%s", found);
    return SUCCESS;
}
static int energy(long card, uint64_t *count, float *step, uint64_t *at) {
    *step = 15.3f, *at = 1;
    return number(card, "energy", count);
}

#ifndef ELDER
/* A socket for each card, and on each socket a CPU beside the GPU. */
typedef struct { long card; int type; } handle_t;
static handle_t sockets[8], processors[8][2];
int amdsmi_init(uint64_t flags) { return flags == 2 ? known(-1, "init", SUCCESS) : INVAL; }
int amdsmi_get_socket_handles(uint32_t *count, handle_t **out) {
    uint32_t there = known(-1, "count", 0);
    if (!out) return *count = there, SUCCESS;
    for (uint32_t at = 0; at < *count; at++) sockets[at].card = at, out[at] = &sockets[at];
    return SUCCESS;
}
int amdsmi_get_processor_handles(handle_t *socket, uint32_t *count, handle_t **out) {
    if (!out) return *count = 2, SUCCESS;
    for (uint32_t at = 0; at < *count; at++) {
        processors[socket->card][at] = (handle_t){socket->card, at ? 1 : 2};
        out[at] = &processors[socket->card][at];
    }
    return SUCCESS;
}
int amdsmi_get_processor_type(handle_t *gpu, int *out) { *out = gpu->type; return SUCCESS; }
int amdsmi_get_gpu_bdf_id(handle_t *gpu, uint64_t *out) { return number(gpu->card, "bdf", out); }
typedef struct {
    char market_name[256]; uint32_t vendor_id; char vendor_name[256]; uint32_t subvendor_id; uint64_t device_id; uint32_t rev_id;
    char asic_serial[256]; uint32_t oam_id, num_of_compute_units; uint64_t target_graphics_version; uint32_t subsystem_id, reserved[21];
} asic_t;
int amdsmi_get_gpu_asic_info(handle_t *gpu, asic_t *out) {
    memset(out, 0xee, sizeof *out);
    snprintf(out->market_name, 256, "AMD Instinct MI300X");
    return SUCCESS;
}
typedef struct { uint32_t gfx_activity, umc_activity, mm_activity, reserved[13]; } use_t;
int amdsmi_get_gpu_activity(handle_t *gpu, use_t *out) {
    uint64_t found = 0;
    int state = number(gpu->card, "use", &found);
    memset(out, 0xee, sizeof *out);
    out->gfx_activity = found;
    return state;
}
typedef struct { uint32_t clk, min_clk, max_clk; uint8_t clk_locked, clk_deep_sleep; uint32_t reserved[4]; } clk_t;
int amdsmi_get_clock_info(handle_t *gpu, int kind, clk_t *out) {
    *out = (clk_t){2100, 132, 2100, 0, 0, {0}};
    return kind ? INVAL : SUCCESS;
}
int amdsmi_get_gpu_memory_total(handle_t *gpu, int kind, uint64_t *out) { return kind ? INVAL : number(gpu->card, "total", out); }
int amdsmi_get_gpu_memory_usage(handle_t *gpu, int kind, uint64_t *out) { return kind ? INVAL : number(gpu->card, "used", out); }
int amdsmi_get_temp_metric(handle_t *gpu, int sensor, int metric, int64_t *out) {
    return sensor != 1 || metric ? NOT_SUPPORTED : number(gpu->card, "heat", (uint64_t *)out);
}
typedef struct { uint64_t correctable, uncorrectable, deferred, reserved[5]; } count_t;
int amdsmi_get_gpu_total_ecc_count(handle_t *gpu, count_t *out) {
    *out = (count_t){0, known(gpu->card, "uncorrected", 0), 77, {0}};
    return number(gpu->card, "corrected", &out->correctable);
}
int amdsmi_get_gpu_compute_partition(handle_t *gpu, char *out, uint32_t size) { return words(gpu->card, "partition", out, size); }
int amdsmi_get_gpu_memory_partition(handle_t *gpu, char *out, uint32_t size) {
    return words(gpu->card, "memory_partition", out, size);
}
int amdsmi_get_energy_count(handle_t *gpu, uint64_t *count, float *step, uint64_t *at) { return energy(gpu->card, count, step, at); }
#else
int rsmi_init(uint64_t flags) { return flags ? INVAL : known(-1, "init", SUCCESS); }
int rsmi_num_monitor_devices(uint32_t *out) { *out = known(-1, "count", 0); return SUCCESS; }
int rsmi_dev_pci_id_get(uint32_t card, uint64_t *out) { return number(card, "bdf", out); }
int rsmi_dev_name_get(uint32_t card, char *out, size_t size) { snprintf(out, size, "Instinct MI210"); return SUCCESS; }
int rsmi_dev_memory_total_get(uint32_t card, int kind, uint64_t *out) { return kind ? INVAL : number(card, "total", out); }
int rsmi_dev_memory_usage_get(uint32_t card, int kind, uint64_t *out) { return kind ? INVAL : number(card, "used", out); }
int rsmi_dev_busy_percent_get(uint32_t card, uint32_t *out) {
    uint64_t found = 0;
    int state = number(card, "use", &found);
    *out = found;
    return state;
}
/* Older releases know the mean power only. */
int rsmi_dev_power_ave_get(uint32_t card, uint32_t sensor, uint64_t *out) { return sensor ? INVAL : number(card, "microwatts", out); }
int rsmi_dev_temp_metric_get(uint32_t card, uint32_t sensor, int metric, int64_t *out) {
    int state = sensor || metric ? NOT_SUPPORTED : number(card, "heat", (uint64_t *)out);
    *out *= 1000;
    return state;
}
typedef struct { uint64_t correctable, uncorrectable; } count_t;
int rsmi_dev_ecc_count_get(uint32_t card, int block, count_t *out) {
    *out = (count_t){0, known(card, "uncorrected", 0)};
    return block == 1 ? number(card, "corrected", &out->correctable) : INVAL;
}
int rsmi_dev_compute_partition_get(uint32_t card, char *out, uint32_t size) { return words(card, "partition", out, size); }
int rsmi_dev_energy_count_get(uint32_t card, uint64_t *count, float *step, uint64_t *at) { return energy(card, count, step, at); }
#endif
