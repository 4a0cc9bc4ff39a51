/* A stand-in for libze_loader.so.1: the functions of Level Zero's Sysman that the agent calls, with the structures as
 * zes_api.h and ze_api.h (1.12) have them, so that a layout that is wrong elsewhere reads nonsense here. A structure that
 * comes with the wrong type (stype) is refused, as drivers do.
 * Every call looks at the file that LEVELZERO_STANDIN names; its lines are "key value": count, init, and of card N
 * "N.name", "N.bus", "N.integrated", "N.size" and "N.free" (of each of two modules), "N.health", "N.energy" and "N.at" (uJ, us;
 * none without), "N.busy" (us since "N.at" began), "N.heat", "N.clock", "N.throttle", "N.width", "N.reset". "hang" is in
 * seconds. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNSUPPORTED = 0x78000003, BAD_ARGUMENT = 0x78000004 };
typedef struct { int card, number; } handle_t;
static handle_t driver = {-1, 0}, devices[8], modules[8][3], engines[8][3], sensors[8][2], clocks[8][2], powers[8];

static char *text(int card, const char *name, char *out, const char *otherwise) {
    char key[64], line[256];
    FILE *file = fopen(getenv("LEVELZERO_STANDIN") ? getenv("LEVELZERO_STANDIN") : "", "r");
    card < 0 ? snprintf(key, sizeof key, "%s ", name) : snprintf(key, sizeof key, "%d.%s ", card, name);
    snprintf(out, 200, "%s", otherwise);
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key))) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, 200, "%.199s", line + strlen(key));
        }
    if (file) fclose(file);
    return out;
}
static double number(int card, const char *name, double otherwise) {
    char found[200];
    text(card, name, found, "");
    return *found ? atof(found) : otherwise;
}

static int list(uint32_t *count, handle_t **out, handle_t *from, uint32_t there, int card) {
    if (!out) return *count = there, SUCCESS;
    if (*count > there) *count = there;
    for (uint32_t at = 0; at < *count; at++) {
        out[at] = &from[at];
        if (card >= 0) from[at] = (handle_t){card, at};
    }
    return SUCCESS;
}

int zesInit(uint32_t flags) {
    if (number(-1, "hang", 0)) sleep(number(-1, "hang", 0));
    if (getenv("ZE_AFFINITY_MASK") || getenv("ZE_FLAT_DEVICE_HIERARCHY")) return BAD_ARGUMENT;
    return flags ? BAD_ARGUMENT : (int)number(-1, "init", SUCCESS);
}
int zesDriverGet(uint32_t *count, handle_t **out) { return list(count, out, &driver, 1, -1); }
int zesDeviceGet(handle_t *owner, uint32_t *count, handle_t **out) {
    for (int card = 0; card < 8; card++) devices[card] = (handle_t){card, 0};
    return owner == &driver ? list(count, out, devices, number(-1, "count", 0), -1) : BAD_ARGUMENT;
}

typedef struct {
    int stype; void *pNext; int type; uint32_t vendorId, deviceId, flags, subdeviceId, coreClockRate; uint64_t maxMemAllocSize;
    uint32_t maxHardwareContexts, maxCommandQueuePriority, numThreadsPerEU, physicalEUSimdWidth, numEUsPerSubslice;
    uint32_t numSubslicesPerSlice, numSlices; uint64_t timerResolution; uint32_t timestampValidBits, kernelTimestampValidBits;
    struct { uint8_t id[16]; } uuid; char name[256];
} core_t;
typedef struct {
    int stype; void *pNext; core_t core; uint32_t numSubdevices;
    char serialNumber[64], boardNumber[64], brandName[64], modelName[64], vendorName[64], driverVersion[64];
} properties_t;
int zesDeviceGetProperties(handle_t *device, properties_t *out) {
    char word[200];
    if (out->stype != 1) return BAD_ARGUMENT;
    memset(&out->core, 0xee, sizeof *out - offsetof(properties_t, core));
    out->core.type = 1;
    out->core.flags = number(device->card, "integrated", 0) ? 1 : 4;
    snprintf(out->core.name, 256, "%s", text(device->card, "name", word, "Intel(R) Data Center GPU Max 1550"));
    out->numSubdevices = 2;
    snprintf(out->driverVersion, 64, "1.6.31294");
    snprintf(out->modelName, 64, "not the name");
    return number(device->card, "lost", 0) ? 0x70000001 : SUCCESS;
}
typedef struct { int32_t gen, width; int64_t maxBandwidth; } speed_t;
typedef struct {
    int stype; void *pNext; struct { uint32_t domain, bus, device, function; } address; speed_t maxSpeed;
    uint8_t haveBandwidthCounters, havePacketCounters, haveReplayCounters;
} pci_t;
int zesDevicePciGetProperties(handle_t *device, pci_t *out) {
    if (out->stype != 2) return BAD_ARGUMENT;
    out->address.domain = 0, out->address.bus = number(device->card, "bus", 0x40 + device->card);
    out->address.device = 0, out->address.function = 0;
    out->maxSpeed = (speed_t){5, 16, 64000000000};
    return SUCCESS;
}
typedef struct { int stype; const void *pNext; int status; uint32_t quality, stability; speed_t speed; } pci_state_t;
int zesDevicePciGetState(handle_t *device, pci_state_t *out) {
    if (out->stype != 0x17) return BAD_ARGUMENT;
    out->speed = (speed_t){number(device->card, "generation", 5), number(device->card, "width", 16), -1};
    return SUCCESS;
}
typedef struct { int stype; const void *pNext; uint32_t reset; int repaired; } state_t;
int zesDeviceGetState(handle_t *device, state_t *out) {
    out->reset = number(device->card, "reset", 0), out->repaired = 1;
    return out->stype == 0x15 ? SUCCESS : BAD_ARGUMENT;
}

/* Two modules on the card, one for each tile, and one in the host's memory. */
int zesDeviceEnumMemoryModules(handle_t *device, uint32_t *count, handle_t **out) {
    return list(count, out, modules[device->card], 3, device->card);
}
typedef struct {
    int stype; void *pNext; int type; uint8_t onSubdevice; uint32_t subdeviceId; int location; uint64_t physicalSize;
    int32_t busWidth, numChannels;
} memory_t;
int zesMemoryGetProperties(handle_t *module, memory_t *out) {
    out->type = 3, out->onSubdevice = 1, out->subdeviceId = module->number, out->location = module->number < 2;
    out->physicalSize = 0, out->busWidth = out->numChannels = -1;
    return out->stype == 0xb ? SUCCESS : BAD_ARGUMENT;
}
typedef struct { int stype; const void *pNext; int health; uint64_t free, size; } memory_state_t;
int zesMemoryGetState(handle_t *module, memory_state_t *out) {
    out->health = module->number ? number(module->card, "health", 1) : 1;
    out->size = number(module->card, "size", 64.0 * (1 << 30)), out->free = number(module->card, "free", 60.0 * (1 << 30));
    return out->stype == 0x1e ? SUCCESS : BAD_ARGUMENT;
}

typedef struct { uint64_t count, timestamp; } counter_t;
int zesDeviceGetCardPowerDomain(handle_t *device, handle_t **out) {
    if (number(device->card, "energy", -1) < 0) return UNSUPPORTED;
    powers[device->card] = (handle_t){device->card, 0};
    *out = &powers[device->card];
    return SUCCESS;
}
int zesPowerGetEnergyCounter(handle_t *domain, counter_t *out) {
    *out = (counter_t){number(domain->card, "energy", 0), number(domain->card, "at", 0)};
    return SUCCESS;
}
/* One group of all engines for each tile, and one for copies. */
int zesDeviceEnumEngineGroups(handle_t *device, uint32_t *count, handle_t **out) {
    return list(count, out, engines[device->card], 3, device->card);
}
typedef struct { int stype; void *pNext; int type; uint8_t onSubdevice; uint32_t subdeviceId; } engine_t;
int zesEngineGetProperties(handle_t *group, engine_t *out) {
    out->type = group->number < 2 ? 0 : 3, out->onSubdevice = 1, out->subdeviceId = group->number;
    return out->stype == 5 ? SUCCESS : BAD_ARGUMENT;
}
int zesEngineGetActivity(handle_t *group, counter_t *out) {
    double busy = number(group->card, "busy", -1);
    *out = (counter_t){group->number ? 0 : busy, number(group->card, "at", 0)};
    return busy < 0 ? UNSUPPORTED : SUCCESS;
}
int zesDeviceEnumTemperatureSensors(handle_t *device, uint32_t *count, handle_t **out) {
    return list(count, out, sensors[device->card], 2, device->card);
}
typedef struct {
    int stype; void *pNext; int type; uint8_t onSubdevice; uint32_t subdeviceId; double maxTemperature; uint8_t rest[3];
} sensor_t;
int zesTemperatureGetProperties(handle_t *sensor, sensor_t *out) {
    out->type = sensor->number, out->onSubdevice = 0, out->subdeviceId = 0, out->maxTemperature = 105;
    return out->stype == 0x14 ? SUCCESS : BAD_ARGUMENT;
}
int zesTemperatureGetState(handle_t *sensor, double *out) {
    *out = number(sensor->card, "heat", 40) + (sensor->number ? 0 : 20);
    return SUCCESS;
}
/* The memory's clock comes first. */
int zesDeviceEnumFrequencyDomains(handle_t *device, uint32_t *count, handle_t **out) {
    return list(count, out, clocks[device->card], 2, device->card);
}
typedef struct {
    int stype; void *pNext; int type; uint8_t onSubdevice; uint32_t subdeviceId; uint8_t canControl, throttleEvent; double min, max;
} clock_t_;
int zesFrequencyGetProperties(handle_t *domain, clock_t_ *out) {
    out->type = domain->number ? 0 : 1, out->onSubdevice = 0, out->subdeviceId = 0, out->min = 900, out->max = 1600;
    return out->stype == 9 ? SUCCESS : BAD_ARGUMENT;
}
typedef struct { int stype; const void *pNext; double voltage, request, tdp, efficient, actual; uint32_t throttleReasons; } clock_state_t;
int zesFrequencyGetState(handle_t *domain, clock_state_t *out) {
    *out = (clock_state_t){out->stype, NULL, -1, 1550, 1600, 900, number(domain->card, "clock", 1550), number(domain->card, "throttle", 0)};
    return out->stype == 0x1b ? SUCCESS : BAD_ARGUMENT;
}
