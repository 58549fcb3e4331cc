"""English: `--check`: the verdict, the runtime, the package, the network and the NPU's self test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "check-ready": "ready: {ready}",
    "check-largest": "largest context that fits: {context}",
    "check-backend": "backend: {backend}",
    "check-next": "next: {text}",
    # engine and Rockchip runtime
    "check-runtime-engine": "{version}, interface {abi}, kernels {kernels}, SHA-256 by {sha256}, {path}",
    "check-runtime-engine-missing": "the engine library cannot be loaded: {message}",
    "check-runtime-engine-missing-next": "{hint}",
    "check-runtime-rknn": "librknnrt {version} ({build}), sha256 {sha256}, {path}",
    "check-runtime-rknn-old": "librknnrt {version} ({build}) is old: no memory domains, no INT4, K up to 4096; "
    "sha256 {sha256}, {path}",
    "check-runtime-rknn-old-next": "use librknnrt 2.3.2",
    "check-runtime-rknn-broken": "librknnrt {version} ({build}) is known to compute wrong products or to crash; "
    "sha256 {sha256}, {path}",
    "check-runtime-rknn-broken-next": "use librknnrt 2.3.2",
    "check-runtime-rknn-unknown": "librknnrt {version} ({build}) is not a version that this program knows; "
    "sha256 {sha256}, {path}",
    "check-runtime-rknn-unknown-next": "mindnano-infer --check=deep tests it on this board; 2.3.2 is known to work",
    "check-runtime-rknn-none": "this build carries no Rockchip runtime, and the CPU needs none",
    "check-runtime-rknn-relative": "{variable} is {path}, which is no absolute path; it is not used",
    "check-runtime-rknn-relative-next": "give the whole path of librknnrt.so in {variable}",
    "check-runtime-rknn-missing": "the Rockchip runtime cannot be read: {path}",
    "check-runtime-rknn-missing-next": "check the path and its permissions",
    "check-runtime-rknn-damaged": "the Rockchip runtime is damaged: {trouble}; sha256 {sha256}, {path}",
    "check-runtime-rknn-damaged-next": "copy the file again",
    "check-runtime-rknn-foreign": "the Rockchip runtime is for {machine}, this machine is {expected}: {path}",
    "check-runtime-rknn-foreign-next": "take the file for {expected}",
    "check-runtime-rknn-symbols": "librknnrt {version} lacks {missing}; sha256 {sha256}, {path}",
    "check-runtime-rknn-symbols-next": "use librknnrt 2.3.2",
    "check-runtime-rknn-system": "the system has librknnrt {version} at {path}; it is not used",
    # package
    "check-package": "{name}: {size}, {layers} layers, {experts} experts, context up to {context}, {path}",
    "check-package-mtp": "{name}: {size}, {layers} layers and MTP, {experts} experts, context up to {context}, {path}",
    "check-package-none": "none named",
    "check-package-none-next": "mindnano-infer --demo tries the built-in model; --model FILE.l3r names one",
    "check-package-unread": "not opened without the engine: {path}",
    "check-package-unusable": "{message}",
    "check-package-unusable-next": "{hint}",
    "check-package-verified": "its bytes are those of the manifest",
    "check-package-unverified": "its bytes were not compared with a manifest yet",
    "check-package-unverified-next": "mindnano-infer --verify",
    "check-package-no-manifest": "there is no MANIFEST.json beside it to compare with",
    "check-package-hashed": "every section has the digest that the package states ({size})",
    # network
    "check-network-port-free": "{address} is free",
    "check-network-port-taken": "port {port} is taken ({address})",
    "check-network-port-taken-next": "ss -ltnp 'sport = :{port}' shows by whom; --port chooses another",
    "check-network-port-privileged": "port {port} needs privileges ({error}, {address})",
    "check-network-port-privileged-next": "--port 9092, or any other above 1023",
    "check-network-address-foreign": "{address} is no address of this machine ({error})",
    "check-network-address-foreign-next": "ip -brief address lists this machine's addresses",
    "check-network-port-unusable": "{address} cannot be used ({error})",
    "check-network-port-unusable-next": "--host 127.0.0.1",
    "check-network-lan": "{address} can be reached from other machines",
    "check-network-lan-next": "a server there needs --api-key; --host 127.0.0.1 keeps it to this machine",
    # bug reports
    "check-report-title": "mindnano-infer {version}: text for a bug report",
    "check-report-note": "names of people and machines, addresses, serial numbers and folders are left out",
}
