// Reading a foreign file: exceptions of libraries become Errors that name the file.
#pragma once

#include <string>
#include <utility>

#include "host/base/error.hpp"

namespace chassis {

// For a catch block. Turns an exception of the JSON library into an Error with `code` that names `file`, and one of the
// file system into a storage error; rethrows all others, Errors included.
[[noreturn]] void rethrow_as_error(const std::string& file, ExitCode code);

// Returns read(), whose exceptions pass through rethrow_as_error().
template <class Read>
decltype(auto) reading(const std::string& file, ExitCode code, Read&& read) {
  try {
    return std::forward<Read>(read)();
  } catch (...) {
    rethrow_as_error(file, code);
  }
}

}  // namespace chassis
