/* A stand-in for libnvidia-ml.so.1 that the real pynvml loads. Every call reads the file that NVML_STANDIN names anew,
 * so a test changes a card while an agent looks at it. Lines are "key value": count, init, hang (seconds), and for card N
 * "N.uuid", "N.name", "N.memory", "N.used", "N.util", "N.power", "N.temp", "N.lost", "N.mig", "N.bus", "N.peer".
 * With -DOLD_DRIVER the library lacks what old drivers lack. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };
typedef struct { int index; } card_t;
static card_t cards[16];

static const char *text(const char *key, const char *otherwise) {
    static char lines[8][256];
    static int turn;
    char *line = lines[turn = (turn + 1) % 8];
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = strlen(key);
    const char *found = otherwise;
    while (file && fgets(line, 256, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            found = line + length + 1;
            break;
        }
    if (file) fclose(file);
    return found;
}

static long number(const char *key, long otherwise) {
    const char *found = text(key, NULL);
    return found ? atol(found) : otherwise;
}

static const char *field(card_t *card, const char *name) {
    static char key[64];
    snprintf(key, sizeof key, "%d.%s", card->index, name);
    return key;
}

/* What every call on a card does first. */
static int enter(card_t *card) {
    long hang = number("hang", 0);
    if (hang) sleep(hang);
    return number(field(card, "lost"), 0) ? GPU_IS_LOST : SUCCESS;
}

static int value(card_t *card, const char *name, unsigned *out) {
    int state = enter(card);
    long found = number(field(card, name), -1);
    if (state) return state;
    if (found < 0) return NOT_SUPPORTED;
    *out = found;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return number("init", SUCCESS); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) {
    return code == GPU_IS_LOST ? "GPU is lost" : code == 18 ? "Driver/library version mismatch" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "%s", text("driver", "570.0")); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = number("count", 0); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t **out) {
    if (index >= 16) return INVALID_ARGUMENT;
    cards[index].index = index;
    *out = &cards[index];
    return SUCCESS;
}
int nvmlDeviceGetUUID(card_t *card, char *out, unsigned size) {
    int state = enter(card);
    if (!state) snprintf(out, size, "%s", text(field(card, "uuid"), "GPU-none"));
    return state;
}
int nvmlDeviceGetName(card_t *card, char *out, unsigned size) {
    int state = enter(card);
    if (!state) snprintf(out, size, "%s", text(field(card, "name"), "NVIDIA H100 80GB HBM3"));
    return state;
}
int nvmlDeviceGetMemoryInfo(card_t *card, uint64_t out[3]) {
    int state = enter(card);
    out[0] = (uint64_t)number(field(card, "memory"), 80L << 30);
    out[2] = (uint64_t)number(field(card, "used"), 0);
    out[1] = out[0] - out[2];
    return state;
}
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
static void fill(pci_t *out, long bus) {
    memset(out, 0, sizeof *out);
    out->bus = bus;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02lX:00.0", bus);
}
int nvmlDeviceGetPciInfo_v3(card_t *card, pci_t *out) {
    int state = enter(card);
    fill(out, number(field(card, "bus"), 16 + card->index));
    return state;
}
int nvmlDeviceGetUtilizationRates(card_t *card, unsigned out[2]) { out[1] = 0; return value(card, "util", out); }
int nvmlDeviceGetPowerUsage(card_t *card, unsigned *out) { return value(card, "power", out); }
int nvmlDeviceGetTemperature(card_t *card, int sensor, unsigned *out) { (void)sensor; return value(card, "temp", out); }
int nvmlDeviceGetMaxPcieLinkGeneration(card_t *card, unsigned *out) { *out = 5; return enter(card); }
int nvmlDeviceGetMaxPcieLinkWidth(card_t *card, unsigned *out) { *out = 16; return enter(card); }
#ifndef OLD_DRIVER
int nvmlDeviceGetMigMode(card_t *card, unsigned *now, unsigned *later) {
    *now = *later = number(field(card, "mig"), 0);
    return enter(card);
}
int nvmlDeviceGetNvLinkState(card_t *card, unsigned link, unsigned *out) {
    if (link >= 4 || number(field(card, "peer"), -1) < 0) return link ? INVALID_ARGUMENT : NOT_SUPPORTED;
    *out = 1;
    return enter(card);
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(card_t *card, unsigned link, pci_t *out) {
    (void)link;
    fill(out, number(field(card, "peer"), 0));
    return enter(card);
}
int nvmlDeviceGetNvLinkVersion(card_t *card, unsigned link, unsigned *out) { (void)link; *out = 4; return enter(card); }
#endif
