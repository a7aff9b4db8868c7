# Compiles for another processor, C library or system with Zig's C++ compiler (PyPI: ziglang), which has the headers and
# libraries of all of them:
#
#   cmake -S . -B build/x --toolchain native/zig.cmake -DFEEDLINE_ZIG=/path/of/zig -DFEEDLINE_TARGET=aarch64-macos
#
# -DFEEDLINE_TARGET=x86_64-linux-gnu.2.28   needs glibc 2.28 or later, and no C++ library: libc++ is inside
# -DFEEDLINE_TARGET=aarch64-linux-musl      programs are static; tests run under qemu-aarch64-static, if it is installed
# -DFEEDLINE_ROOT=/path                     include and lib: what is not of the system, such as libjpeg-turbo
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FEEDLINE_ZIG FEEDLINE_TARGET FEEDLINE_ROOT)
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "${FEEDLINE_TARGET}")
if(FEEDLINE_TARGET MATCHES "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
  set(CMAKE_INSTALL_NAME_TOOL true)  # looked for, and not needed for what is not installed
else()
  set(CMAKE_SYSTEM_NAME Linux)
  find_program(FEEDLINE_QEMU qemu-${CMAKE_SYSTEM_PROCESSOR}-static)
  if(FEEDLINE_QEMU AND NOT CMAKE_SYSTEM_PROCESSOR STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${FEEDLINE_QEMU})
  endif()
endif()
set(CMAKE_CXX_COMPILER ${FEEDLINE_ZIG} c++ -target ${FEEDLINE_TARGET})
# Python's headers repeat macros of newer C libraries with other values. nanobind relies on libstdc++ for <cstdio>.
set(CMAKE_CXX_FLAGS_INIT "-Wno-macro-redefined -include cstdio")
if(FEEDLINE_ROOT)
  set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES ${FEEDLINE_ROOT}/include)
endif()
set(CMAKE_CXX_ARCHIVE_CREATE "${FEEDLINE_ZIG} ar qcs <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "${FEEDLINE_ZIG} ar qs <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "")
# Libraries of this machine are for this machine.
set(CMAKE_FIND_ROOT_PATH ${FEEDLINE_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# Zig keeps no compiled headers apart from its own.
set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
