"""Every name that Tenure shares with the cluster, written once.

Names of the field (`hami.io`, `airm.ai-computing.io`, `rm_accel_*`) stay as HAMi and rm-accel wrote them;
everything new lives under `tenure.dev`. Three families of keys differ in who may write them:

* request keys (`tenure.dev/...`): a user sets them on a pod;
* decision keys: only the server writes them, and only in the write that places the pod;
* node keys: written by device plugins, administrators or Tenure's own controllers.
"""

from typing import Final

GROUP: Final = "tenure.dev"
VERSION: Final = "v1alpha1"
SCHEDULER_NAME: Final = "tenure-scheduler"
# What the API server writes into a pod that names no scheduler (core/v1 defaults).
DEFAULT_SCHEDULER: Final = "default-scheduler"

# Decision keys: whoever holds one of these holds a card, so no tenant may write them.
LUPINE_ENDPOINT: Final = "hami.io/lupine-endpoint"
DEVICES_ALLOCATED: Final = "hami.io/remote-gpu-devices-allocated"
ALLOCATION_PREFIX: Final = "allocation.tenure.dev/"
DECISION_KEYS: Final = (LUPINE_ENDPOINT, DEVICES_ALLOCATED)

# Request keys, set by users on pods.
REGIONS: Final = "tenure.dev/regions"
CLAIM_TEMPLATE: Final = "tenure.dev/claim-template"
CLAIM_CONTAINERS: Final = "tenure.dev/claim-containers"

# The scheduling gate that keeps a pod out of the scheduler until its cards are promised.
GATE: Final = "tenure.dev/remote-gpu"
# Metadata patch that wakes the scheduler for a pod it rejected (verified row 5).
WAKE: Final = "tenure.dev/wake"

# Node keys.
LUPINE_SERVER_LABEL: Final = "hami.io/lupine-server"
NODE_REGISTER: Final = "hami.io/node-nvidia-register"
DEVICE_CORDON: Final = "hami.io/device-cordon"
CARD_ENDPOINTS: Final = "tenure.dev/card-endpoints"
HOST_HELD_LABEL: Final = "airm.ai-computing.io/host-held"
REGIONS_READY_LABEL: Final = "tenure.dev/regions"
REGIONS_READY: Final = "ready"
RDMA_DEVICES: Final = "tenure.dev/rdma-devices"
CORDON_OWNED: Final = "tenure.dev/device-cordon-owned"

# Environment of containers.
LUPINE_SERVER_ENV: Final = "LUPINE_SERVER"
CUDA_VISIBLE_DEVICES_ENV: Final = "CUDA_VISIBLE_DEVICES"
LUPINE_DISABLE_LOCAL_ENV: Final = "LUPINE_DISABLE_LOCAL"
NVIDIA_VISIBLE_DEVICES_ENV: Final = "NVIDIA_VISIBLE_DEVICES"

# Resource names; settings may change both at once for webhook, extender, chart and scheduler.
REMOTE_GPU: Final = "hami.io/remote-gpu"
REMOTE_GPU_MEMORY: Final = "hami.io/remote-gpu-memory"

# lupine's own default (lupine, server main): the port its driver server listens on.
LUPINE_PORT: Final = 14833
# The backend word in an encoded allocation (HAMi, device encoding: the keyword, not the card's model).
ALLOCATION_KEYWORD: Final = "NVIDIA"

CSI_DRIVER: Final = "csi.tenure.dev"
DRA_DRIVER: Final = "remote.tenure.dev"
FIELD_MANAGER: Final = "tenure"
# Owns nothing but the caBundle of our webhooks, so that an installer that applies the rest meets no conflict.
CERTS_FIELD_MANAGER: Final = "tenure-certs"

# Folders of a region volume, and where the vGPU library looks for them (vgpu-manager, library/include/hook.h).
SM_NODE: Final = "sm_node"
VMEM_NODE: Final = "vmem_node"
REGION_PATHS: Final = {SM_NODE: "/tmp/.sm_node", VMEM_NODE: "/tmp/.vmem_node"}  # noqa: S108 - the library's paths
# Switches of the vGPU library that must match what is mounted; it only knows the spellings true, TRUE and 1.
REGION_SWITCHES: Final = {SM_NODE: "CUDA_SM_SHARED_BUCKET", VMEM_NODE: "VMEMORY_NODE_ENABLED"}
# The only volume attribute of csi.tenure.dev: the container whose region folders the volume shows.
CSI_CONTAINER: Final = "container"
# hostPath backend: the pod's uid, for the path of its folder.
POD_UID_ENV: Final = "TENURE_POD_UID"
