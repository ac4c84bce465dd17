# Stops with one sentence where the package cannot be built.

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR
    "pytriton runs on Linux x86-64 and this is ${CMAKE_SYSTEM_NAME} ${CMAKE_SYSTEM_PROCESSOR}: build it on Linux x86-64, "
    "or in a Linux x86-64 container.")
endif()

if(PYTRITON_BUNDLE_SERVER AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  message(FATAL_ERROR
    "pytriton bundles a Triton server for Linux x86-64 and this is ${CMAKE_SYSTEM_NAME} ${CMAKE_SYSTEM_PROCESSOR}: "
    "build it on Linux x86-64, or for a Triton server of your own with "
    "`pip install . --config-settings=cmake.define.PYTRITON_BUNDLE_SERVER=OFF`.")
endif()

if(CMAKE_CXX_COMPILER)
  set(compiler_names ${CMAKE_CXX_COMPILER})
elseif(NOT "$ENV{CXX}" STREQUAL "")
  separate_arguments(compiler_names UNIX_COMMAND "$ENV{CXX}") # CXX may contain options too
  list(GET compiler_names 0 compiler_names)
else()
  set(compiler_names c++ g++ clang++ icpx CC)
endif()
find_program(PYTRITON_CXX NAMES ${compiler_names} NO_CACHE)
if(NOT PYTRITON_CXX)
  string(REPLACE ";" ", " compiler_names "${compiler_names}")
  message(FATAL_ERROR
    "pytriton needs a C++17 compiler and found none (looked for: ${compiler_names}): install one "
    "(Debian, Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++ libstdc++-static`; "
    "conda: `conda install gxx`) or name it in the environment variable CXX.")
endif()
