/* What fbgemm's CUDA build asks of NVIDIA's management library when it is imported. On a machine
 * without a driver there is no such library: this one says to each question that it knows nothing
 * (requirements/cuda_on_cpu.sh). 999 is NVML_ERROR_UNKNOWN. */
int nvmlInit_v2(void) { return 999; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 0, 999; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return 999; }
int nvmlDeviceGetPciInfo_v3(void *device, void *pci) { return 999; }
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) { return 999; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *pci) { return 999; }
