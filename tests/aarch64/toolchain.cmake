# Cross-compiling for 64-bit ARM on Debian and Ubuntu, and running the result
# under qemu. CONTRIBUTING.md lists the packages.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(triple aarch64-linux-gnu)
set(CMAKE_CXX_COMPILER ${triple}-g++)
set(CMAKE_LIBRARY_ARCHITECTURE ${triple})
set(ENV{PKG_CONFIG_LIBDIR}
  "/usr/lib/${triple}/pkgconfig:/usr/share/pkgconfig")

# max: a CPU with every extension, dotprod among them. The libraries are those
# of Debian's arm64 packages, so no other root is needed. The whole path: some
# tests run a program without PATH.
find_program(KVLAB_QEMU qemu-aarch64-static REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR "${KVLAB_QEMU}" -cpu max)
