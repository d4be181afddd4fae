# cmake --install: a prefix that may be moved, for training and for building plugins:
#   bin/chassis  lib/chassis/plugins/  include/chassis/  share/chassis/{cmake,configs,examples,rust}/
# LibTorch stays where it is and is found by absolute path, unless CHASSIS_BUNDLE_TORCH copies its libraries to
# lib/chassis/libtorch/, which makes the prefix self-contained. tools/package makes packages of such a prefix.
include(CMakePackageConfigHelpers)

set(data "${CMAKE_INSTALL_DATADIR}/chassis")
if(TARGET chassis)
  if(CHASSIS_BUNDLE_TORCH)
    set(torch_libraries "${CMAKE_INSTALL_LIBDIR}/chassis/libtorch")
    # Rationale: CMake pads a build RPATH that is not longer than the installed one with ':', and an empty entry means
    # the working directory. With the installed path added, the build RPATH is longer.
    set(installed_path "$ORIGIN/../${torch_libraries}/torch/lib")
    set_target_properties(chassis PROPERTIES INSTALL_RPATH "${installed_path}" BUILD_RPATH "${installed_path}")
    install(DIRECTORY "${CHASSIS_TORCH_DIR}/lib" DESTINATION "${torch_libraries}/torch"
            FILES_MATCHING PATTERN "*.so*" PATTERN "libtorch_python*" EXCLUDE)
    # The wheel's libraries look for CUDA's run-time libraries in ../../nvidia.
    file(GLOB nvidia "${CHASSIS_TORCH_DIR}/../nvidia/*")
    foreach(folder IN LISTS nvidia)
      cmake_path(GET folder FILENAME name)
      install(DIRECTORY "${folder}/lib" DESTINATION "${torch_libraries}/nvidia/${name}" FILES_MATCHING PATTERN "*.so*")
    endforeach()
  else()
    set_target_properties(chassis PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${CHASSIS_TORCH_DIR}/lib")
  endif()
  install(TARGETS chassis RUNTIME)
endif()

install(TARGETS chassis_sdk EXPORT ChassisTargets)
set_target_properties(chassis_sdk PROPERTIES EXPORT_NAME sdk)
install(EXPORT ChassisTargets NAMESPACE Chassis:: DESTINATION "${data}/cmake")
install(DIRECTORY "${CHASSIS_ABI_HEADERS}/chassis" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(EXISTS "${PROJECT_SOURCE_DIR}/sdk/cpp/chassis")
  install(DIRECTORY sdk/cpp/chassis DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
endif()
foreach(folder configs sdk/examples sdk/rust)
  if(EXISTS "${PROJECT_SOURCE_DIR}/${folder}")
    install(DIRECTORY ${folder} DESTINATION "${data}" PATTERN target EXCLUDE PATTERN tests EXCLUDE)
  endif()
endforeach()

configure_package_config_file(sdk/cmake/ChassisConfig.cmake.in "${PROJECT_BINARY_DIR}/ChassisConfig.cmake"
  INSTALL_DESTINATION "${data}/cmake" NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ChassisConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/ChassisConfig.cmake" "${PROJECT_BINARY_DIR}/ChassisConfigVersion.cmake"
              sdk/cmake/ChassisPlugin.cmake sdk/cmake/ChassisRust.cmake sdk/cmake/ChassisTorch.cmake
        DESTINATION "${data}/cmake")
install(PROGRAMS sdk/cmake/audit-plugin.sh sdk/cmake/build-rust.sh DESTINATION "${data}/cmake")
install(FILES LICENSE DESTINATION "${data}")
