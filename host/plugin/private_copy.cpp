// Private copies of libraries, named by their hash. Libraries are loaded from these, so that the code that runs is the
// code that was hashed, and a file may be replaced during a run.
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "host/plugin/library.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr auto kKeepUnused = std::chrono::hours(24 * 30), kKeepUsed = std::chrono::hours(1);

// Creates the folder if missing. Returns why it cannot be used or trusted; empty if it can.
std::string prepare_folder(const std::string& folder) {
  if (folder.empty()) return "neither XDG_CACHE_HOME nor HOME is set";
  std::error_code error;
  fs::create_directories(fs::path(folder).parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return fmt::format("{} cannot be created: {}", folder, std::strerror(errno));
  }
  struct stat status;
  if (::lstat(folder.c_str(), &status) != 0) return fmt::format("{}: {}", folder, std::strerror(errno));
  if (!S_ISDIR(status.st_mode)) return folder + " is not a folder";
  if (status.st_uid != ::geteuid()) {
    return fmt::format("{} belongs to user {}, not to {}", folder, status.st_uid, ::geteuid());
  }
  if ((status.st_mode & 077) != 0 && ::chmod(folder.c_str(), 0700) != 0) {
    return fmt::format("{} is open to others (mode {:o})", folder, status.st_mode & 0777);
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return fmt::format("{} is not writable", folder);
  return "";
}

// Copies a file and returns the hash of the bytes written.
std::string copy_hashed(const std::string& from, const std::string& to) {
  const File in = File::open_read(from);
  File out = File::create_exclusive(to, 0600);
  Sha256 hash;
  std::vector<char> piece(1 << 20);
  uint64_t offset = 0;
  while (const size_t num_bytes = in.pread_some(piece.data(), piece.size(), offset)) {
    hash.update(piece.data(), num_bytes);
    out.pwrite_exact(piece.data(), num_bytes, offset);
    offset += num_bytes;
  }
  out.close();
  return hash.hex();
}

// A copy, or the folder of one, with the time of its last use.
struct CachedCopy {
  fs::file_time_type used;
  fs::path path;
  uint64_t num_bytes = 0;
};

uint64_t bytes_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return fs::file_size(path, error);
  uint64_t sum = 0;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (const auto size = fs::file_size(entry->path(), ignored); !ignored) sum += size;
  }
  return sum;
}

// Copies a file to <folder>/<hash><name>, unless that exists. If `name` begins with '/', <hash> is a folder.
PrivateCopy copy_into(const std::string& path, const std::string& folder, const std::string& name) {
  PrivateCopy copy{{}, sha256_file(path), false};
  copy.path = folder + "/" + copy.sha256 + name;
  std::error_code error;
  const auto mark_copy = [&] {
    mark_used(name.starts_with('/') ? fs::path(copy.path).parent_path().string() : copy.path);
  };
  if (fs::exists(copy.path, error)) {
    mark_copy();  // before it is read, so that no other process removes it meanwhile
    if (sha256_file(copy.path) == copy.sha256) return copy;
  }
  const std::string unfinished = temporary_name(folder + "/" + copy.sha256);
  fs::remove(unfinished, error);
  try {
    // The file may have changed after it was hashed: name the copy by the bytes that were written.
    copy.sha256 = copy_hashed(path, unfinished);
    copy.path = folder + "/" + copy.sha256 + name;
    if (name.starts_with('/')) fs::create_directory(fs::path(copy.path).parent_path());
    fs::rename(unfinished, copy.path);
  } catch (...) {
    fs::remove(unfinished, error);
    throw;
  }
  mark_copy();
  const std::string written = sha256_file(copy.path);
  if (written != copy.sha256) {
    fs::remove(copy.path, error);
    throw storage_error(
        fmt::format("the copy of {} in {} has hash {}, expected {}", path, folder, written, copy.sha256));
  }
  return copy;
}

PrivateCopy copy_into_new_folder(const std::string& path) {
  std::error_code error;
  std::string folder = (fs::temp_directory_path(error) / "chassis-plugins-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) {
    throw storage_error(fmt::format("no folder for a private copy of {}: {}: {}", path, folder, std::strerror(errno)));
  }
  try {
    PrivateCopy copy = copy_into(path, folder, ".so");
    copy.is_temporary = true;
    return copy;
  } catch (...) {
    fs::remove_all(folder, error);
    throw;
  }
}

void check_pin(const std::string& sha256, const PluginPin* pin, const std::string& label, const std::string& path) {
  if (pin == nullptr || pin->sha256 == sha256) return;
  throw Error(ExitCode::kPlugin, pin->where,
              fmt::format("{} ({}) has sha256:{}, but it is pinned to sha256:{}", label, path, sha256, pin->sha256));
}

// The folders of a process are read once: a run loads many plugins.
void prune_once(const std::string& folder) {
  static std::mutex& mutex = *new std::mutex;
  static auto& pruned = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (pruned.insert(folder).second) prune_plugin_cache(folder);
}

}  // namespace

std::string plugin_cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/') {
    return std::string(cache) + "/chassis/plugins";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::string(home) + "/.cache/chassis/plugins";
  }
  return "";
}

PluginPin parse_pin(const std::string& id, const std::string& value, const SourcePosition& where) {
  constexpr std::string_view kPrefix = "sha256:";
  PluginPin pin{value.starts_with(kPrefix) ? value.substr(kPrefix.size()) : "", where};
  bool is_hex = pin.sha256.size() == 64;
  for (char& c : pin.sha256) {
    is_hex = is_hex && std::isxdigit(static_cast<unsigned char>(c)) != 0;
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (!is_hex) {
    throw Error(ExitCode::kConfig, where,
                fmt::format("the pin of plugin '{}' is '{}', expected \"sha256:\" and 64 hex digits", id, value))
        .hint(fmt::format("`chassis plugins info {}` prints the hash", id));
  }
  return pin;
}

PrivateCopy make_private_copy(const std::string& path, const std::string& cache_folder, const PluginPin* pin,
                              const std::string& label) {
  std::string reason = prepare_folder(cache_folder);
  if (reason.empty()) {
    try {
      prune_once(cache_folder);
      const PrivateCopy copy = copy_into(path, cache_folder, ".so");
      check_pin(copy.sha256, pin, label, path);
      return copy;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kStorage) throw;
      reason = error.message();
    } catch (const fs::filesystem_error& error) {
      reason = error.what();
    }
  }
  counted_warning("plugins copied to a temporary folder",
                  fmt::format("the plugin cache cannot be used: {}; {} is loaded from a temporary copy", reason, path));
  PrivateCopy copy = copy_into_new_folder(path);
  try {
    check_pin(copy.sha256, pin, label, path);
  } catch (...) {
    remove_temporary(copy);
    throw;
  }
  return copy;
}

void prune_plugin_cache(const std::string& folder, uint64_t max_bytes) {
  std::error_code error;
  mark_used(folder);
  const auto now = fs::last_write_time(folder, error);
  if (error) return;
  std::vector<CachedCopy> copies;
  uint64_t sum = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const auto used = entry->last_write_time(ignored);
    if (ignored) continue;
    copies.push_back({used, entry->path(), bytes_of(entry->path())});
    sum += copies.back().num_bytes;
  }
  std::ranges::sort(copies, {}, &CachedCopy::used);
  for (const CachedCopy& copy : copies) {
    const auto unused = now - copy.used;
    if (unused <= kKeepUnused && (sum <= max_bytes || unused <= kKeepUsed)) break;
    fs::remove_all(copy.path, error);
    sum -= std::min(sum, copy.num_bytes);
  }
}

std::string copy_libraries(NeededLibraries& needed, const PrivateCopy& plugin, const PluginFile& file,
                           const LoadPolicy& policy) {
  if (needed.brought.empty()) return "";
  const std::string folder = fs::path(plugin.path).parent_path().string();
  std::vector<std::string> names, folders;
  for (BroughtLibrary& library : needed.brought) {
    const bool is_path = library.name[0] == '/';  // the dynamic linker maps it from there
    library.sha256 = is_path ? sha256_file(library.path) : "";
    library.copy = library.path;
    names.push_back(library.name);
    if (!is_path) {
      const PrivateCopy copy = copy_into(library.path, folder, "/" + library.name);
      library.sha256 = copy.sha256, library.copy = fs::absolute(copy.path).lexically_normal().string();
      folders.push_back(copy.sha256);
    }
    check_pin(library.sha256, policy.pin_of(file.manifest, library.file_name()),
              fmt::format("{}, which {} needs,", library.file_name(), file.manifest.label()), library.path);
  }
  // Adds the system libraries that they need, so that those symbols are found as if the plugin itself were mapped.
  names.insert(names.end(), needed.others.begin(), needed.others.end());
  folders.insert(folders.end(), needed.folders.begin(), needed.folders.end());
  const std::string bytes = linking_library(names, folders), path = folder + "/" + sha256_hex(bytes) + ".so";
  write_file_atomic(path, bytes, 0600);
  return path;
}

void remove_temporary(const PrivateCopy& copy) {
  if (!copy.is_temporary) return;
  std::error_code error;
  fs::remove_all(fs::path(copy.path).parent_path(), error);
}

}  // namespace chassis
