# chassis_add_plugin(): one call builds and audits a plugin, both in this tree and against an installed prefix.

# chassis_add_plugin(<id> SOURCES … [ISA_SOURCES …] [TIER T0|T1|T2] [VERSION x.y.z] [KINDS <kind>…] [LIBS …])
# makes the module <id>.so (target chassis_plugin_<id>) from C, C++ or CUDA sources. It exports one symbol,
# chassis_plugin_entry_v1. TIER T0 (the default) uses the SDK only; T1 also LibTorch's stable C shim; T2 its C++ API.
# The build fails if the library's manifest has another VERSION (default 0.1.0) or members of other KINDS.
# ISA_SOURCES hold inner loops, compiled once for each instruction set and selected at run time: chassis/simd.hpp.
function(chassis_add_plugin id)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIER;VERSION" "SOURCES;ISA_SOURCES;KINDS;LIBS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "chassis_add_plugin(${id}): SOURCES missing, or unknown argument ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_TIER)
    set(arg_TIER T0)
  endif()
  if(NOT arg_TIER MATCHES "^T[012]$")
    message(FATAL_ERROR "chassis_add_plugin(${id}): TIER is ${arg_TIER}, expected T0, T1 or T2")
  endif()
  set(version "${arg_VERSION}")
  if(NOT version)
    set(version 0.1.0)
  endif()

  set(target chassis_plugin_${id})
  add_library(${target} MODULE ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES
    PREFIX "" SUFFIX .so OUTPUT_NAME ${id} BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH ""
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    C_STANDARD 11 CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Static POSITION_INDEPENDENT_CODE ON)
  if(CHASSIS_PLUGIN_OUTPUT_DIR)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CHASSIS_PLUGIN_OUTPUT_DIR}")
  endif()
  target_link_libraries(${target} PRIVATE Chassis::sdk ${arg_LIBS})
  if(arg_ISA_SOURCES)
    chassis_add_isa_sources(${target} ${arg_ISA_SOURCES})
  endif()

  # Definitions for the manifest, the ELF note.
  set(torch "")
  if(arg_TIER STREQUAL "T1")
    set(torch 2.10)
    target_compile_definitions(${target} PRIVATE TORCH_TARGET_VERSION=0x020a000000000000)
  endif()
  if(NOT arg_TIER STREQUAL "T0")
    chassis_find_torch()
    target_link_libraries(${target} PRIVATE chassis_torch)
  endif()
  if(arg_TIER STREQUAL "T2")
    set(torch "${CHASSIS_TORCH_VERSION}")
  endif()
  chassis_device_code(${target} "${arg_SOURCES}" device_code)
  execute_process(COMMAND git log -1 --format=%h -- . WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
                  OUTPUT_VARIABLE git OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  string(REPLACE ";" "," kinds "${arg_KINDS}")
  target_compile_definitions(${target} PRIVATE
    CHASSIS_PLUGIN_ID="${id}" CHASSIS_PLUGIN_VERSION="${version}" CHASSIS_PLUGIN_TIER="${arg_TIER}"
    CHASSIS_PLUGIN_GIT="${git}" CHASSIS_PLUGIN_TORCH="${torch}" CHASSIS_PLUGIN_DEVICE_CODE="${device_code}")

  # One exported symbol, no undefined symbols, no symbols of GNU's unique binding.
  set(script "${CMAKE_CURRENT_BINARY_DIR}/${id}.map")
  file(CONFIGURE OUTPUT "${script}" CONTENT "{ global: chassis_plugin_entry_v1; local: *; };\n")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${script}")
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANG_AND_ID:C,GNU>:-fno-gnu-unique>" "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>")
  if(CMAKE_CUDA_COMPILER AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fno-gnu-unique>")
  endif()
  target_link_options(${target} PRIVATE "LINKER:--version-script=${script}" "LINKER:-z,now" "LINKER:--exclude-libs,ALL")
  get_directory_property(link_options LINK_OPTIONS)
  if(NOT "${link_options};${CMAKE_CXX_FLAGS};${CMAKE_C_FLAGS}" MATCHES "-fsanitize" OR
     CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_link_options(${target} PRIVATE "LINKER:--no-undefined")   # clang's sanitizer run-time is in the host
  endif()

  add_custom_command(TARGET ${target} POST_BUILD VERBATIM
    COMMAND sh "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/audit-plugin.sh"
            --delete "$<TARGET_FILE:${target}>" ${arg_TIER} "${CMAKE_READELF}" "${kinds}" "${arg_VERSION}")
endfunction()

# chassis_device_code(<target> <sources> <out>) sets the lines of the manifest that say what the device code of these
# sources is built for, joined by ':'; "" without device code. A type of devices with a language of its own in CMake has
# its keys here. Plugins for others write the lines in CHASSIS_PLUGIN, as those do that have only host code.
function(chassis_device_code target sources out)
  set(${out} "" PARENT_SCOPE)
  if("${sources}" MATCHES "\\.cu(;|$)")
    string(REGEX MATCH "^[0-9]+" cuda "${CMAKE_CUDA_COMPILER_VERSION}")
    get_target_property(sm ${target} CUDA_ARCHITECTURES)
    # CMake's 90-real is code, 90-virtual is PTX, 90 is both.
    list(TRANSFORM sm REPLACE "^([0-9]+[af]?)$" "\\1-real;\\1-virtual")
    list(TRANSFORM sm REPLACE "^(.+)-real$" "\\1")
    list(TRANSFORM sm REPLACE "^(.+)-virtual$" "ptx\\1")
    string(REPLACE ";" "," sm "${sm}")
    set(${out} "cuda=${cuda}:sm=${sm}" PARENT_SCOPE)
  endif()
endfunction()

# chassis_add_isa_sources(<target> <source>…) compiles C++ sources into a target once for each instruction set, which
# CHASSIS_ISA names. The compiler may reorder sums and turn divisions into products, so that loops vectorise; NaN and
# infinity keep their meaning. Results are repeatable within one instruction set.
function(chassis_add_isa_sources target)
  set(options_Baseline "")
  set(options_Avx2 -march=x86-64-v3)
  set(options_Avx512 -march=x86-64-v4 -mprefer-vector-width=512)
  set(isas Baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND isas Avx2 Avx512)
  endif()
  foreach(isa IN LISTS isas)
    set(objects isa_${target}_${isa})
    add_library(${objects} OBJECT ${ARGN})
    set_target_properties(${objects} PROPERTIES
      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
      CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(${objects} PRIVATE Chassis::sdk)
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_definitions(${objects} PRIVATE CHASSIS_ISA=${isa})
    target_compile_options(${objects} PRIVATE ${options_${isa}}
      -O3 -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros -freciprocal-math)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()
