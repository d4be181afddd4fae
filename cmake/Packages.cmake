# Third-party packages of the host, all from the distribution; tools/bootstrap installs them.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(simdjson REQUIRED)
find_package(Boost 1.81 REQUIRED)   # headers: Boost.DLL
find_package(tomlplusplus QUIET)
if(NOT TARGET tomlplusplus::tomlplusplus)
  find_path(CHASSIS_TOMLPLUSPLUS toml++/toml.h REQUIRED)
  add_library(tomlplusplus::tomlplusplus INTERFACE IMPORTED)
  target_include_directories(tomlplusplus::tomlplusplus INTERFACE "${CHASSIS_TOMLPLUSPLUS}")
endif()
if(CHASSIS_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark QUIET)
endif()
