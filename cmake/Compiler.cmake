# Flags for everything built in this tree: warnings, optimisation, sanitizers, linker, compiler cache.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

foreach(language C CXX)
  set(CMAKE_${language}_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
  set(CMAKE_${language}_FLAGS_DEBUG "-O0 -g")
endforeach()
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra>")

# Paths below the source directory are made relative in the compiler cache and in __FILE__, so that clones in other
# folders share the cache.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>")
find_program(CHASSIS_CCACHE ccache)
if(CHASSIS_CCACHE)
  foreach(language C CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER
          "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${CHASSIS_CCACHE}")
    endif()
  endforeach()
endif()

find_program(CHASSIS_LLD ld.lld)
if(CHASSIS_LLD)
  add_link_options("$<$<LINK_LANGUAGE:C,CXX>:-fuse-ld=lld>")
endif()

if(CHASSIS_FUZZ)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>")
endif()
# Debug and sanitizer builds assert which functions a thread may call; see host/plugin/thread_role.hpp.
add_compile_definitions("$<$<CONFIG:Debug>:CHASSIS_THREAD_ROLES>")

if(CHASSIS_SANITIZE)
  add_compile_definitions(CHASSIS_THREAD_ROLES)
  string(REPLACE "-O2" "-O1" CMAKE_C_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")
  string(REPLACE "-O2" "-O1" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
  set(flags -fsanitize=${CHASSIS_SANITIZE} -fno-omit-frame-pointer)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${flags}>")
  if(CHASSIS_SANITIZE MATCHES "undefined")
    add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=undefined>")
  endif()
  add_link_options(-fsanitize=${CHASSIS_SANITIZE})
endif()
