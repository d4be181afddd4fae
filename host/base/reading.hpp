// Looking into a file of others: whatever is thrown on the way becomes an Error that names the file.
#pragma once

#include <string>
#include <utility>

#include "host/base/error.hpp"

namespace chassis {

// In a catch block. An Error goes on as it is; json's exceptions and those of the file system become one of this code
// that names `file`, all others go on.
[[noreturn]] void rethrow_as_error(const std::string& file, ExitCode code);

// What `read` returns.
template <class Read>
decltype(auto) reading(const std::string& file, ExitCode code, Read&& read) {
  try {
    return std::forward<Read>(read)();
  } catch (...) {
    rethrow_as_error(file, code);
  }
}

}  // namespace chassis
