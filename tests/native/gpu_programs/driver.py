"""Memory of a GPU is copied, shared with other processes, and given back."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
from gpu import address_of, library, to_gpu

from pytriton.proxy.cuda import driver
from pytriton.proxy.transport.device_arena import DeviceArena, PeerDeviceArena
from pytriton.proxy.wire.encoding import DeviceLocation

if len(sys.argv) > 1:  # the other process
    location = DeviceLocation(bytes.fromhex(sys.argv[1]), driver.id_of(0), 0)
    arena = PeerDeviceArena()
    peer = arena.open(location)
    assert arena.open(location) is peer
    found = np.empty(4, np.int32)
    with driver.context(0):
        driver.start_copy(address_of(found), peer.address, 16)
        driver.wait()
    print(found.tolist())
    del peer, arena
    assert library.fake_cuda_memories() == 0
    sys.exit()

tensor = to_gpu(np.arange(4, dtype=np.int32))
handle = tensor._owner.handle.hex()
seen = subprocess.run([sys.executable, __file__, handle], capture_output=True, text=True, check=True).stdout
assert seen == "[0, 1, 2, 3]\n", seen
assert tensor.numpy().tolist() == [0, 1, 2, 3]

try:
    driver.PeerMemory(tensor._owner.handle, driver.id_of(0))
except driver.CudaError as error:
    assert str(error) == "cuIpcOpenMemHandle_v2: something went wrong (CUDA error 201)", error
else:
    raise AssertionError("a process opens its own memory")
try:
    driver.Memory(1, 7)
except driver.CudaError as error:
    assert "no such GPU" in str(error), error

child = os.fork()
if child == 0:
    used = driver.used_device()
    try:
        tensor.numpy()
    except driver.CudaError as error:
        os._exit(0 if used is None and "a fork of a process" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0

arena = DeviceArena()
blocks = [arena.allocate(size, device) for size in (1, 3 << 20, 5) for device in (0, 1)]
addresses = {block.memory.address for block in blocks}
assert len(addresses) == 6
assert [block.memory.size for block in blocks[:4:2]] == [2 << 20, 4 << 20]
del blocks
assert {arena.allocate(3 << 20, 1).memory.address} <= addresses
assert library.fake_cuda_memories() == 7
del arena, tensor
assert library.fake_cuda_memories() == 0
print("passed")
