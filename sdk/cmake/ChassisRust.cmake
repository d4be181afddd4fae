# chassis_add_rust_plugin(): builds and audits a plugin in Rust, both in this tree and against an installed prefix.

# A project of its own wants its plugin, so that a missing one is an error.
set(default ON)
if(EXISTS "${CMAKE_CURRENT_LIST_DIR}/../../host/CMakeLists.txt")
  set(default AUTO)
endif()
set(CHASSIS_RUST ${default} CACHE STRING "Plugins in Rust: AUTO (when a new enough cargo is found), ON, OFF")
unset(default)
set_property(CACHE CHASSIS_RUST PROPERTY STRINGS AUTO ON OFF)
set(CHASSIS_CARGO_VENDOR "" CACHE PATH
    "Crates from registries, as cargo vendor writes them; empty: those that cargo has fetched")
get_filename_component(CHASSIS_RUST_CRATES "${CMAKE_CURRENT_LIST_DIR}/../rust" ABSOLUTE)   # in a prefix, too

# chassis_add_rust_plugin(<id> KINDS <kind>… [VERSION x.y.z] [MANIFEST Cargo.toml])
# makes the module <id>.so (target chassis_plugin_<id>) from a package that has a cdylib and depends on the crate
# chassis. cargo builds it with the packages of Cargo.lock, without network. The build fails if the library's manifest
# has another VERSION (default: any; it is that of Cargo.toml) or members of other KINDS. Without a new enough cargo, or
# without the crates that it needs, the plugin is left out with a message; CHASSIS_RUST=ON, the
# default outside of this tree, makes this an error.
function(chassis_add_rust_plugin id)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "VERSION;MANIFEST" "KINDS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "chassis_add_rust_plugin(${id}): unknown argument ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_MANIFEST)
    set(arg_MANIFEST Cargo.toml)
  endif()
  cmake_path(ABSOLUTE_PATH arg_MANIFEST BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE OUTPUT_VARIABLE manifest)
  cmake_path(GET manifest PARENT_PATH folder)

  chassis_find_cargo(missing)
  set(vendored "")
  set(crates "")
  if(EXISTS "${folder}/Cargo.lock")
    file(STRINGS "${folder}/Cargo.lock" crates REGEX "^source = \"registry")
  elseif(NOT missing)
    set(missing "${folder} has no Cargo.lock (from tools/bootstrap in this tree, else from cargo generate-lockfile)")
  endif()
  if(NOT missing AND crates AND CHASSIS_CARGO_VENDOR)
    if(EXISTS "${CHASSIS_CARGO_VENDOR}")
      chassis_vendored_crates(vendored)
    else()
      set(missing "its crates are not in ${CHASSIS_CARGO_VENDOR} (tools/bootstrap gets them)")
    endif()
  endif()
  if(missing AND CHASSIS_RUST MATCHES "^(AUTO|OFF|0|NO|FALSE)$")
    message(STATUS "Rust: plugin ${id} is left out: ${missing}")
    return()
  elseif(missing)
    message(FATAL_ERROR "CHASSIS_RUST=${CHASSIS_RUST}, but plugin ${id} cannot be built: ${missing}")
  endif()

  chassis_cdylib_of("${manifest}" library)
  execute_process(COMMAND git log -1 --format=%h -- . WORKING_DIRECTORY "${folder}"
                  OUTPUT_VARIABLE git OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  string(REPLACE ";" "," kinds "${arg_KINDS}")
  set(output_dir "${CMAKE_CURRENT_BINARY_DIR}")
  if(CHASSIS_PLUGIN_OUTPUT_DIR)
    set(output_dir "${CHASSIS_PLUGIN_OUTPUT_DIR}")
  endif()
  set(output "${output_dir}/${id}.so")
  set(build_dir "${CMAKE_CURRENT_BINARY_DIR}/cargo-${id}")
  chassis_cargo_environment("${folder}" "${build_dir}" environment)
  list(APPEND environment "CHASSIS_PLUGIN_ID=${id}" "CHASSIS_PLUGIN_GIT=${git}")
  file(GLOB manifests CONFIGURE_DEPENDS "${folder}/*/Cargo.toml" "${CHASSIS_RUST_CRATES}/*/Cargo.toml")
  set(scripts "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  # Panics unwind, whatever Cargo.toml says: the crate chassis returns them as errors.
  add_custom_command(OUTPUT "${output}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" -E env ${environment}
            sh "${scripts}/build-rust.sh" "${build_dir}" "${library}" "${output}"
            "${CHASSIS_CARGO}" rustc --quiet --release --lib --locked --offline --manifest-path "${manifest}"
            --config "profile.release.panic=\"unwind\"" ${vendored} -- -C link-arg=-Wl,--no-undefined
    COMMAND sh "${scripts}/audit-plugin.sh" --delete "${output}" T0 "${CMAKE_READELF}" "${kinds}" "${arg_VERSION}"
    DEPENDS "${manifest}" "${folder}/Cargo.lock" ${manifests} "${CHASSIS_RUST_CRATES}/Cargo.toml"
            "${scripts}/build-rust.sh" "${scripts}/audit-plugin.sh"
    DEPFILE "${build_dir}/${id}.d"
    COMMENT "Building the Rust plugin ${id}.so")
  add_custom_target(chassis_plugin_${id} ALL DEPENDS "${output}")
  set_target_properties(chassis_plugin_${id} PROPERTIES CHASSIS_PLUGIN_FILE "${output}")
endfunction()

# Sets CHASSIS_CARGO and CHASSIS_RUSTC to a pair that is new enough for the crate chassis: that of the PATH, or else
# Debian's. Sets `missing` to the reason if there is none, else to "".
function(chassis_find_cargo missing)
  if(NOT CHASSIS_RUST)
    set(${missing} "CHASSIS_RUST is OFF" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS "${CHASSIS_RUST_CRATES}/Cargo.toml" line REGEX "^rust-version")
  string(REGEX REPLACE ".*\"([0-9.]+)\".*" "\\1" oldest "${line}")
  if(EXISTS "${CHASSIS_CARGO}" AND EXISTS "${CHASSIS_RUSTC}" AND NOT CHASSIS_RUSTC_VERSION VERSION_LESS oldest)
    set(${missing} "" PARENT_SCOPE)
    return()
  endif()
  set(found "no cargo is found")
  find_program(in_path cargo NO_CACHE)
  foreach(cargo IN ITEMS "${in_path}" /usr/bin/cargo)
    cmake_path(REPLACE_FILENAME cargo rustc OUTPUT_VARIABLE rustc)
    if(NOT EXISTS "${cargo}" OR NOT EXISTS "${rustc}")
      continue()
    endif()
    execute_process(COMMAND "${rustc}" --version OUTPUT_VARIABLE text ERROR_VARIABLE text)
    string(REGEX MATCH "^rustc ([0-9]+\\.[0-9]+\\.[0-9]+)" matched "${text}")
    if(matched AND NOT CMAKE_MATCH_1 VERSION_LESS oldest)
      message(STATUS "Rust: ${cargo} ${CMAKE_MATCH_1}")
      set(CHASSIS_CARGO "${cargo}" CACHE INTERNAL "cargo in use")
      set(CHASSIS_RUSTC "${rustc}" CACHE INTERNAL "rustc in use")
      set(CHASSIS_RUSTC_VERSION "${CMAKE_MATCH_1}" CACHE INTERNAL "its version")
      set(${missing} "" PARENT_SCOPE)
      return()
    endif()
    string(STRIP "${text}" text)
    set(found "${rustc} is too old or does not run (${text})")
  endforeach()
  set(${missing} "${found}; ${oldest} or later is needed (tools/bootstrap installs Debian's rustc-web and cargo-web)" PARENT_SCOPE)
endfunction()

# The environment in which cargo builds the plugin in a folder. RUSTFLAGS hold, and messages of the plugin name sources
# without the folders of this machine. Who runs cargo on the same build folder in another one builds everything again.
function(chassis_cargo_environment folder build_dir out)
  string(ASCII 31 separator)
  string(REGEX MATCHALL "[^ ]+" flags "$ENV{RUSTFLAGS}")
  foreach(prefix IN LISTS folder CHASSIS_RUST_CRATES CHASSIS_CARGO_VENDOR build_dir)
    list(APPEND flags "--remap-path-prefix=${prefix}/=")
  endforeach()
  list(JOIN flags "${separator}" flags)
  set(environment "CARGO_TARGET_DIR=${build_dir}" "RUSTC=${CHASSIS_RUSTC}" "CARGO_ENCODED_RUSTFLAGS=${flags}")
  if(CMAKE_C_COMPILER AND CMAKE_CXX_COMPILER)   # for crates with sources in C
    list(APPEND environment "CC=${CMAKE_C_COMPILER}" "CXX=${CMAKE_CXX_COMPILER}")
  endif()
  set(${out} "${environment}" PARENT_SCOPE)
endfunction()

# The arguments by which cargo takes crates from CHASSIS_CARGO_VENDOR; none if it is empty.
function(chassis_vendored_crates out)
  set(${out} "" PARENT_SCOPE)
  if(CHASSIS_CARGO_VENDOR)
    set(${out} --config "source.crates-io.replace-with=\"chassis-vendor\""
               --config "source.chassis-vendor.directory=\"${CHASSIS_CARGO_VENDOR}\"" PARENT_SCOPE)
  endif()
endfunction()

# The name of the cdylib in a package.
function(chassis_cdylib_of manifest out)
  execute_process(COMMAND "${CHASSIS_CARGO}" metadata --no-deps --offline --format-version 1
                          --manifest-path "${manifest}"
                  OUTPUT_VARIABLE text ERROR_VARIABLE error RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "cargo cannot read ${manifest}:\n${error}")
  endif()
  string(JSON num_packages LENGTH "${text}" packages)
  foreach(package RANGE 1 ${num_packages})
    math(EXPR package "${package} - 1")
    string(JSON path GET "${text}" packages ${package} manifest_path)
    string(JSON num_targets LENGTH "${text}" packages ${package} targets)
    if(NOT path STREQUAL manifest OR num_targets EQUAL 0)
      continue()
    endif()
    foreach(target RANGE 1 ${num_targets})
      math(EXPR target "${target} - 1")
      string(JSON kinds GET "${text}" packages ${package} targets ${target} kind)
      if(kinds MATCHES "\"cdylib\"")
        string(JSON name GET "${text}" packages ${package} targets ${target} name)
        set(${out} "${name}" PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
  message(FATAL_ERROR "${manifest} has no cdylib; write under [lib]: crate-type = [\"cdylib\"]")
endfunction()
