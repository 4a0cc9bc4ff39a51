/* A stand-in for libnvidia-ml.so.1 that the real pynvml loads. Every call looks at the file that NVML_STANDIN names,
 * so a test changes a card while an agent looks at it. Lines are "key value": count, init, hang (seconds), and for card N
 * "N.uuid", "N.name", "N.memory", "N.used", "N.util", "N.power", "N.temp", "N.clock", "N.throttle", "N.lost", "N.bus",
 * "N.peer", "N.width" (PCIe lanes now), "N.generation" (of PCIe now), "N.pid" (a process on it), "N.ecc" (uncorrected since
 * the driver was loaded; "N.ecc0" corrected, "N.ever" uncorrected in its life), "N.retiring", "N.energy" (mJ),
 * "N.recovery" (an action asked for), "N.persistence", "N.pending" and "N.failed" (row remapping),
 * "N.mig" (enabled) and "N.made", its instances: profile, first slot, slots and pid of a process, as "3g.40gb 0 4 0" with
 * commas between. Where they lie is told to root only: never with "user". "stuck" lets none be removed. "xid" (a number)
 * and "xidcard" are an event, told once per "xidturn". "holders" is a file into which is written how often the library is
 * open now.
 * With -DOLD_DRIVER the library lacks what old drivers lack. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, GPU_IS_LOST = 15, IN_USE = 19, INSUFFICIENT = 23 };
typedef struct { int index, slice; } card_t;  /* slice: 0 the whole card, else its MIG instance, counted from 1 */
static card_t cards[16];
#ifndef OLD_DRIVER
static card_t slices[16][8];
#endif

/* The state file, read anew when it was replaced: a real driver's calls cost little, and so must these. */
static const char *state(void) {
    static char content[1 << 16];
    static struct stat known;
    struct stat now;
    const char *path = getenv("NVML_STANDIN");
    if (!path || stat(path, &now)) return "";
    if (now.st_ino != known.st_ino || now.st_mtim.tv_nsec != known.st_mtim.tv_nsec) {
        FILE *file = fopen(path, "r");
        if (!file) return "";
        content[fread(content, 1, sizeof content - 1, file)] = 0;
        fclose(file);
        known = now;
    }
    return content;
}

static const char *text(const char *key, const char *otherwise) {
    static char lines[8][256];
    static int turn;
    size_t length = strlen(key);
    for (const char *line = state(); line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, key, length) && line[length] == ' ') {
            char *found = lines[turn = (turn + 1) % 8];
            snprintf(found, 256, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
            return found;
        }
    return otherwise;
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

/* The instances of a card: how many, and what one of them is. */
typedef struct { char profile[32]; int start, size, pid; } made_t;
static int made(card_t *card, int slice, made_t *out) {
    int count = 0;
    char *rest = strdup(text(field(card, "made"), "")), *list = rest, *one;
    while ((one = strsep(&list, ","))) {
        made_t found = {"", 0, 0, 0};
        if (sscanf(one, "%31s %d %d %d", found.profile, &found.start, &found.size, &found.pid) < 3) continue;
        if (++count == slice) *out = found;
    }
    free(rest);
    return count;
}

/* The first slot of an instance, which names it: its number changes when others are removed. */
static int first(card_t *card) {
    made_t one = {"", 0, 0, 0};
    made(card, card->slice, &one);
    return one.start;
}

/* What every call on a card does first. */
static int enter(card_t *card) {
    long hang = number("hang", 0);
    if (hang) sleep(hang);
    return number(field(card, "lost"), 0) ? GPU_IS_LOST : SUCCESS;
}

static int value(card_t *card, const char *name, unsigned *out) {
    int state = card->slice ? NOT_SUPPORTED : enter(card);
    long found = number(field(card, name), -1);
    if (state) return state;
    if (found < 0) return NOT_SUPPORTED;
    *out = found;
    return SUCCESS;
}

/* Who holds the library open: what a reset of the card would have to wait for. */
static int holders;
static int hold(int change) {
    const char *path = text("holders", "");
    holders += change;
    FILE *file = *path ? fopen(path, "w") : NULL;
    if (file) fprintf(file, "%d\n", holders), fclose(file);
    return SUCCESS;
}
int nvmlInitWithFlags(unsigned flags) {
    int state = number("init", SUCCESS);
    (void)flags;
    return state ? state : hold(1);
}
int nvmlShutdown(void) { return hold(-1); }
const char *nvmlErrorString(int code) {
    return code == GPU_IS_LOST ? "GPU is lost" : code == 18 ? "Driver/library version mismatch" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "%s", text("driver", "570.0")); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = number("count", 0); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t **out) {
    if (index >= 16) return INVALID_ARGUMENT;
    cards[index].index = index;
    cards[index].slice = 0;
    *out = &cards[index];
    return SUCCESS;
}
int nvmlDeviceGetUUID(card_t *card, char *out, unsigned size) {
    int state = enter(card);
    const char *uuid = text(field(card, "uuid"), "GPU-none");
    if (!state) card->slice ? snprintf(out, size, "MIG-%s-%d", uuid, first(card)) : snprintf(out, size, "%s", uuid);
    return state;
}
int nvmlDeviceGetName(card_t *card, char *out, unsigned size) {
    int state = enter(card);
    const char *name = text(field(card, "name"), "NVIDIA H100 80GB HBM3");
    made_t one;
    if (!state && card->slice && made(card, card->slice, &one)) snprintf(out, size, "%s MIG %s", name, one.profile);
    else if (!state) snprintf(out, size, "%s", name);
    return state;
}
int nvmlDeviceGetMemoryInfo(card_t *card, uint64_t out[3]) {
    int state = enter(card);
    out[0] = (uint64_t)number(field(card, "memory"), 80L << 30) / (card->slice ? 8 : 1);
    out[2] = (uint64_t)number(field(card, "used"), 0) + (uint64_t)number(field(card, "reserved"), 0);
    out[1] = out[0] - out[2];
    return state;
}
#ifndef OLD_DRIVER
typedef struct { unsigned version; uint64_t total, reserved, free, used; } memory_t;
int nvmlDeviceGetMemoryInfo_v2(card_t *card, memory_t *out) {
    uint64_t older[3];
    int state = nvmlDeviceGetMemoryInfo(card, older);
    if (out->version != (sizeof *out | 2 << 24)) return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    out->total = older[0];
    out->free = older[1];
    out->reserved = (uint64_t)number(field(card, "reserved"), 0);
    out->used = older[2] - out->reserved;
    return state;
}
#endif
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
int nvmlDeviceGetCurrPcieLinkGeneration(card_t *card, unsigned *out) {
    *out = number(field(card, "generation"), 5);
    return enter(card);
}
int nvmlDeviceGetCurrPcieLinkWidth(card_t *card, unsigned *out) { *out = number(field(card, "width"), 16); return enter(card); }
int nvmlDeviceGetClockInfo(card_t *card, int domain, unsigned *out) { (void)domain; return value(card, "clock", out); }
int nvmlDeviceGetCurrentClocksThrottleReasons(card_t *card, unsigned long long *out) {
    unsigned found = 0;
    int state = value(card, "throttle", &found);
    *out = found;
    return state;
}
int nvmlDeviceGetTotalEccErrors(card_t *card, int kind, int counter, unsigned long long *out) {
    unsigned found = 0;
    int state = value(card, counter ? "ever" : kind ? "ecc" : "ecc0", &found);
    *out = found;
    return state;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetGpuMaxPcieLinkGeneration(card_t *card, unsigned *out) { *out = 5; return enter(card); }
int nvmlDeviceGetPersistenceMode(card_t *card, unsigned *out) { return value(card, "persistence", out); }
int nvmlDeviceGetRetiredPagesPendingStatus(card_t *card, unsigned *out) { return value(card, "retiring", out); }
int nvmlDeviceGetTotalEnergyConsumption(card_t *card, unsigned long long *out) {
    long found = number(field(card, "energy"), -1);
    *out = found;
    return found < 0 ? NOT_SUPPORTED : enter(card);
}
/* nvmlFieldValue_t of nvml.h: 230 is NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, told as an unsigned int (type 1). */
typedef struct { unsigned id, scope; long long at, took; int type, state; union { unsigned value; long long wide; } is; } field_t;
int nvmlDeviceGetFieldValues(card_t *card, int count, field_t *out) {
    for (int at = 0; at < count; at++) {
        out[at].type = 1, out[at].state = NOT_SUPPORTED, out[at].is.wide = -1;
        if (out[at].id == 230) out[at].state = value(card, "recovery", &out[at].is.value);
    }
    return enter(card);
}
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
int nvmlDeviceGetRemappedRows(card_t *card, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = 0;
    *pending = number(field(card, "pending"), 0);
    *failed = number(field(card, "failed"), 0);
    return enter(card);
}
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } process_t;
int nvmlDeviceGetComputeRunningProcesses_v3(card_t *card, unsigned *count, process_t *out) {
    made_t one = {"", 0, 0, 0};
    long pid = number(field(card, "pid"), 0);
    int state = enter(card);
    if (card->slice && made(card, card->slice, &one)) pid = one.pid;
    if (state || !pid) return *count = 0, state;
    if (!out || !*count) return *count = 1, TOO_SMALL;
    *count = 1;
    out[0] = (process_t){pid, 1ULL << 30, 0, 0};
    return SUCCESS;
}
int nvmlDeviceGetTopologyCommonAncestor(card_t *one, card_t *other, int *level) {
    *level = one->index / 2 == other->index / 2 ? 10 : 50;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(card_t *card, unsigned *out) { *out = 7; return enter(card); }
int nvmlDeviceGetMigDeviceHandleByIndex(card_t *card, unsigned at, card_t **out) {
    if ((int)at >= made(card, 0, NULL)) return NOT_FOUND;
    slices[card->index][at] = (card_t){card->index, at + 1};
    *out = &slices[card->index][at];
    return enter(card);
}
int nvmlDeviceGetGpuInstanceId(card_t *card, unsigned *out) { *out = card->slice; return enter(card); }
int nvmlDeviceGetGpuInstanceById(card_t *card, unsigned id, card_t **out) {
    if (number("user", 0)) return NO_PERMISSION;
    *out = &slices[card->index][id - 1];
    return enter(card);
}
typedef struct { card_t *card; unsigned id, profile, start, size; } instance_t;
int nvmlGpuInstanceGetInfo(card_t *card, instance_t *out) {
    made_t one;
    if (!made(card, card->slice, &one)) return NOT_FOUND;
    *out = (instance_t){&cards[card->index], card->slice, 0, one.start, one.size};
    return enter(card);
}
typedef struct { unsigned version, id, peers, slices, count, rest[6]; unsigned long long megabytes; char name[96]; } profile_t;
int nvmlDeviceGetGpuInstanceProfileInfoV(card_t *card, unsigned profile, profile_t *out) {
    static const struct { unsigned slices, count; const char *name; } known[] = {
        {1, 7, "MIG 1g.10gb"}, {2, 3, "MIG 2g.20gb"}, {3, 2, "MIG 3g.40gb"}, {4, 1, "MIG 4g.40gb"}, {7, 1, "MIG 7g.80gb"},
    };
    if (profile >= sizeof known / sizeof *known) return NOT_SUPPORTED;
    out->id = profile, out->slices = known[profile].slices, out->count = known[profile].count;
    snprintf(out->name, sizeof out->name, "%s", known[profile].name);
    return enter(card);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, card_t **out) {
    for (int index = 0; index < number("count", 0); index++) {
        cards[index] = (card_t){index, 0};
        if (!strcmp(uuid, text(field(&cards[index], "uuid"), ""))) return *out = &cards[index], SUCCESS;
    }
    return NOT_FOUND;
}
static const struct { unsigned id, size, starts; } profiles[] = {{0, 1, 0x7f}, {1, 2, 0x15}, {2, 4, 0x11}, {3, 4, 1}, {4, 8, 1}};
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(card_t *card, unsigned profile, unsigned (*out)[2], unsigned *count) {
    unsigned found = 0;
    for (unsigned start = 0; start < 8; start++)
        if (profiles[profile].starts >> start & 1) out[found][0] = start, out[found++][1] = profiles[profile].size;
    *count = found;
    return enter(card);
}

/* Write the instances of a card anew, as the driver does when one is made or removed. */
static void divide(card_t *card, const char *list) {
    static char content[1 << 16];
    char key[64], draft[4096];
    size_t length = 0;
    snprintf(key, sizeof key, "%s ", field(card, "made"));
    for (const char *line = state(); line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, key, strlen(key)))
            length += snprintf(content + length, sizeof content - length, "%.*s\n", (int)strcspn(line, "\n"), line);
    length += snprintf(content + length, sizeof content - length, "%s%s\n", key, list);
    snprintf(draft, sizeof draft, "%s.driver", getenv("NVML_STANDIN"));
    FILE *file = fopen(draft, "w");
    fwrite(content, 1, length, file);
    fclose(file);
    rename(draft, getenv("NVML_STANDIN"));
}
static card_t fresh;
static made_t promised;
int nvmlDeviceCreateGpuInstanceWithPlacement(card_t *card, unsigned profile, const unsigned place[2], card_t **out) {
    static const char *const names[] = {"1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"};
    made_t one;
    for (int slice = made(card, 0, NULL); slice > 0; slice--)
        if (made(card, slice, &one) && one.start < (int)(place[0] + place[1]) && (int)place[0] < one.start + one.size)
            return INSUFFICIENT;
    snprintf(promised.profile, sizeof promised.profile, "%s", names[profile]);
    promised.start = place[0], promised.size = place[1];
    fresh = (card_t){card->index, made(card, 0, NULL) + 1};
    *out = &fresh;
    return enter(card);
}
typedef struct { unsigned version, id, slices, rest[7]; char name[96]; } compute_t;
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(card_t *card, unsigned profile, unsigned engine, compute_t *out) {
    static const unsigned slices[] = {1, 2, 3, 4, 7};
    (void)engine;
    if (profile >= sizeof slices / sizeof *slices) return NOT_SUPPORTED;
    out->id = profile, out->slices = slices[profile];
    return enter(card);
}
int nvmlGpuInstanceCreateComputeInstance(card_t *card, unsigned profile, void **out) {
    char list[4096];
    const char *there = text(field(card, "made"), "");
    (void)profile;
    snprintf(list, sizeof list, "%s%s%s %d %d 0", there, *there ? "," : "", promised.profile, promised.start, promised.size);
    divide(card, list);
    *out = card;
    return enter(card);
}
int nvmlDeviceGetComputeInstanceId(card_t *card, unsigned *out) { *out = 0; return enter(card); }
int nvmlGpuInstanceGetComputeInstanceById(card_t *card, unsigned id, void **out) { (void)id; *out = card; return enter(card); }
int nvmlComputeInstanceDestroy(void *instance) { (void)instance; return number("stuck", 0) ? IN_USE : SUCCESS; }
int nvmlGpuInstanceDestroy(card_t *card) {
    char list[4096] = "";
    made_t one;
    for (int slice = 1, count = made(card, 0, NULL); slice <= count; slice++)
        if (slice != card->slice && made(card, slice, &one))
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s %d %d %d", *list ? "," : "", one.profile,
                     one.start, one.size, one.pid);
    divide(card, list);
    return SUCCESS;
}
typedef struct { card_t *card; unsigned long long type, what; unsigned instance, compute; } event_t;
static char events;
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlEventSetCreate(void **out) { *out = &events; return SUCCESS; }
int nvmlDeviceRegisterEvents(card_t *card, unsigned long long types, void *set) { (void)types, (void)set; return enter(card); }
int nvmlEventSetWait_v2(void *set, event_t *out, unsigned wait_ms) {
    static long told;
    long turn = number("xidturn", 0);
    (void)set, (void)wait_ms;
    if (!turn || turn == told) return TIMEOUT;
    told = turn;
    cards[number("xidcard", 0)].slice = 0;
    *out = (event_t){&cards[number("xidcard", 0)], 8, number("xid", 79), 0, 0};
    return SUCCESS;
}
#endif
