// The search for needed libraries, and the library that makes the dynamic linker use private copies of them.
#include "host/plugin/libraries.hpp"

#include <elf.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <set>

#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxBrought = 256;

std::string name_in(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string folder_in(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

// Only root can write to these folders, and everyone uses them. A link elsewhere to a file in them may be redirected at
// any time, so it does not count.
bool is_of_system(const std::string& path) {
  std::error_code error;
  const std::string real = fs::canonical(folder_in(path), error).string() + "/";
  constexpr std::array<std::string_view, 6> kFolders = {"/lib/",     "/lib32/",     "/lib64/",
                                                        "/usr/lib/", "/usr/lib32/", "/usr/lib64/"};
  return !error && std::ranges::any_of(kFolders, [&](std::string_view folder) { return real.starts_with(folder); });
}

std::vector<std::string> user_folders() {
  std::vector<std::string> folders;
  const char* const list = std::getenv("LD_LIBRARY_PATH");
  std::string_view rest = list != nullptr ? list : "";
  for (bool more = !rest.empty(); more;) {
    const size_t end = std::min(rest.find_first_of(":;"), rest.size());
    folders.emplace_back(end == 0 ? "." : rest.substr(0, end));  // an empty entry is the working directory
    more = end < rest.size();
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return folders;
}

// Whether the file is in the folder of the LibTorch in this process, like those of LibTorch's libraries that a run on
// the CPU does not load. Whoever can write there can change the program.
bool is_beside_torch(const std::string& path, const std::vector<std::string>& loaded) {
  const auto torch = std::ranges::find(loaded, "libtorch_cpu.so", name_in);
  std::error_code error;
  return torch != loaded.end() && fs::equivalent(folder_in(path), folder_in(*torch), error);
}

class LibrarySearch {
 public:
  explicit LibrarySearch(const std::vector<std::string>& loaded) : loaded_(loaded), user_folders_(user_folders()) {
    for (const std::string& path : loaded) in_process_.insert(name_in(path));
  }

  NeededLibraries run(const PluginFile& file) {
    add(file.elf, file.path, fmt::format("{} ({})", file.manifest.label(), file.path), {});
    while (!open_.empty()) {
      const Open next = std::move(open_.front());
      open_.pop_front();
      add(next.elf, next.path, next.what, next.inherited);
    }
    return std::move(found_);
  }

 private:
  struct Open {
    ElfFacts elf;
    std::string path, what;
    std::vector<std::string> inherited;  // DT_RPATH of the files that need it
  };

  void add(const ElfFacts& elf, const std::string& path, const std::string& what,
           const std::vector<std::string>& inherited) {
    if (!elf.filters.empty())
      throw plugin_error(fmt::format("{} takes its symbols from {}, which is not supported", what, elf.filters.front()))
          .hint("link it without -f and -F of the linker (DT_AUXILIARY, DT_FILTER)");
    const std::vector<std::string> own = library_path_folders(elf, folder_in(path), what);
    std::vector<std::string> first, last;  // before and after LD_LIBRARY_PATH
    const bool has_runpath = !own.empty() && !elf.is_rpath;
    if (!has_runpath) {
      first = own;
      first.insert(first.end(), inherited.begin(), inherited.end());
    } else {
      last = own;
    }
    std::vector<std::string> folders = first;
    folders.insert(folders.end(), user_folders_.begin(), user_folders_.end());
    folders.insert(folders.end(), last.begin(), last.end());
    for (const std::string& name : elf.needed) add_needed(name, folders, path, what, first);
  }

  void add_needed(const std::string& name, const std::vector<std::string>& folders, const std::string& needed_by,
                  const std::string& what, const std::vector<std::string>& rpath) {
    if (!seen_.insert(name).second) return;
    std::string path;
    if (name.find('/') != std::string::npos) {
      if (name[0] != '/')
        throw plugin_error(fmt::format("{} needs '{}', a path that depends on the working directory", what, name))
            .hint("give that library a name when it is linked: -Wl,-soname," + name_in(name));
      path = name;
    } else {
      if (name.empty() || name == "." || name == "..")
        throw plugin_error(fmt::format("{} needs a library named '{}'", what, name));
      if (in_process_.contains(name)) return;
      for (const std::string& folder : folders) {
        refuse_for_processors(folder, name, what);
        std::error_code error;
        if (!fs::exists(fs::path(folder) / name, error)) continue;
        path = (fs::path(folder) / name).string();
        break;
      }
    }
    if (path.empty() || is_of_system(path)) {
      if (name[0] != '/') found_.others.push_back(name);
      if (!path.empty()) add_folder(folder_in(path));
      return;
    }
    if (is_beside_torch(path, loaded_)) return;
    if (found_.brought.size() == kMaxBrought)
      throw plugin_error(fmt::format("{} needs more than {} libraries", what, kMaxBrought));
    Open next{{}, fs::absolute(path).string(), fmt::format("{} ({}, which {} needs)", name, path, what), rpath};
    try {
      next.elf = read_library(path);
    } catch (const Error& cause) {
      throw plugin_error(fmt::format("{} needs {}, which cannot be used", what, name)).caused_by(cause);
    }
    found_.brought.push_back({name, next.path, needed_by, next.elf.soname});
    open_.push_back(std::move(next));
  }

  // The dynamic linker would prefer such a file, which has not been checked.
  static void refuse_for_processors(const std::string& folder, const std::string& name, const std::string& what) {
    std::error_code error;
    for (fs::directory_iterator level(fs::path(folder) / "glibc-hwcaps", error), end; !error && level != end;
         level.increment(error)) {
      const fs::path path = level->path() / name;
      std::error_code ignored;
      if (fs::exists(path, ignored) && !is_of_system(path.string()))
        throw plugin_error(fmt::format("{} needs {}, which {} has for some processors", what, name, path.string()))
            .hint("put one version of the library next to the plugin, and none below glibc-hwcaps");
    }
  }

  void add_folder(const std::string& folder) {
    if (std::ranges::find(found_.folders, folder) == found_.folders.end()) found_.folders.push_back(folder);
  }

  const std::vector<std::string>& loaded_;
  const std::vector<std::string> user_folders_;
  std::set<std::string> in_process_, seen_;
  std::deque<Open> open_;
  NeededLibraries found_;
};

// The texts and tables of an ELF file, in the order in which they are appended.
class ElfImage {
 public:
  size_t add(const void* bytes, size_t num_bytes, size_t alignment) {
    image_.resize((image_.size() + alignment - 1) / alignment * alignment);
    const size_t at = image_.size();
    image_.append(static_cast<const char*>(bytes), num_bytes);
    return at;
  }
  template <class T>
  size_t add(const std::vector<T>& items) {
    return add(items.data(), items.size() * sizeof(T), alignof(T));
  }
  template <class T>
  void put(size_t at, const T& value) {
    std::memcpy(image_.data() + at, &value, sizeof value);
  }
  std::string take() { return std::move(image_); }
  size_t size() const { return image_.size(); }

 private:
  std::string image_;
};

}  // namespace

ElfFacts read_library(const std::string& path) {
  const File file = File::open_read(path);
  return read_elf({file.size(),
                   [&file](uint64_t offset, void* out, uint64_t num_bytes) {
                     file.pread_exact(out, num_bytes, offset);
                     return true;
                   }},
                  path);
}

std::vector<std::string> library_path_folders(const ElfFacts& elf, const std::string& origin, const std::string& what) {
  std::vector<std::string> folders;
  std::string_view rest = elf.runpath;
  for (bool more = !rest.empty(); more;) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string entry(rest.substr(0, end));
    const auto refuse = [&](const std::string& problem) {
      return plugin_error(fmt::format("{}: its library path '{}' has {}", what, elf.runpath, problem))
          .hint("link it without a library path, or with entries that begin with / or $ORIGIN");
    };
    std::string folder, below = entry;
    for (const std::string_view variable : {"$ORIGIN", "${ORIGIN}"})
      if (entry == variable || entry.starts_with(std::string(variable) + "/"))
        folder = fs::absolute(origin).string(), below = entry.substr(variable.size());
    if (folder.empty() && !entry.starts_with('/'))
      throw refuse((entry.empty() ? std::string("an empty entry") : fmt::format("the relative entry '{}'", entry)) +
                   ", so what it loads depends on the working directory");
    for (const std::string_view variable : {"$ORIGIN", "${ORIGIN}", "$LIB", "${LIB}", "$PLATFORM", "${PLATFORM}"})
      if (below.find(variable) != std::string::npos)
        throw refuse(fmt::format("the entry '{}', in which {} has no meaning here", entry, variable));
    folders.push_back(folder + below);
    more = end < rest.size();
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return folders;
}

NeededLibraries needed_libraries(const PluginFile& file, const std::vector<std::string>& loaded) {
  return LibrarySearch(loaded).run(file);
}

std::string linking_library(const std::vector<std::string>& names, const std::vector<std::string>& folders) {
  std::string strings(1, '\0');
  const auto text = [&](const std::string& value) {
    const size_t at = strings.size();
    strings += value + '\0';
    return static_cast<uint64_t>(at);
  };
  std::vector<Elf64_Dyn> dynamic;
  const auto entry = [&](int64_t tag, uint64_t value) {
    Elf64_Dyn made{};
    made.d_tag = tag;
    made.d_un.d_val = value;
    dynamic.push_back(made);
  };
  for (const std::string& name : names) entry(DT_NEEDED, text(name));
  std::string path;
  for (const std::string& folder : folders)
    path += (path.empty() ? "" : ":") + (folder.starts_with('/') ? folder : "$ORIGIN/" + folder);
  if (!path.empty()) entry(DT_RPATH, text(path));  // searched before LD_LIBRARY_PATH, unlike DT_RUNPATH

  ElfImage image;
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64, header.e_ident[EI_DATA] = ELFDATA2LSB, header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN, header.e_version = EV_CURRENT;
#if defined(__x86_64__)
  header.e_machine = EM_X86_64;
#else
  header.e_machine = EM_AARCH64;
#endif
  header.e_ehsize = sizeof(Elf64_Ehdr), header.e_phentsize = sizeof(Elf64_Phdr), header.e_phnum = 3;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_phoff = sizeof(Elf64_Ehdr);
  image.add(&header, sizeof header, 8);
  const size_t segments_at = image.add(std::vector<Elf64_Phdr>(3));
  entry(DT_HASH, image.add(std::vector<uint32_t>{1, 1, 0, 0}));  // one bucket, one symbol: the empty one
  entry(DT_SYMTAB, image.add(std::vector<Elf64_Sym>(1)));
  entry(DT_SYMENT, sizeof(Elf64_Sym));
  entry(DT_STRTAB, image.add(strings.data(), strings.size(), 1));
  entry(DT_STRSZ, strings.size());
  entry(DT_NULL, 0);
  const size_t dynamic_at = image.add(dynamic);

  constexpr uint64_t kSegmentAlignment = 0x10000;  // the largest page size of both architectures
  const auto segment = [&](size_t index, uint32_t type, uint64_t at, uint64_t num_bytes, uint64_t alignment) {
    Elf64_Phdr made{};
    made.p_type = type, made.p_flags = PF_R | PF_W;
    made.p_offset = made.p_vaddr = made.p_paddr = at;
    made.p_filesz = made.p_memsz = num_bytes, made.p_align = alignment;
    image.put(segments_at + index * sizeof made, made);
  };
  segment(0, PT_LOAD, 0, image.size(), kSegmentAlignment);
  segment(1, PT_DYNAMIC, dynamic_at, dynamic.size() * sizeof(Elf64_Dyn), alignof(Elf64_Dyn));
  segment(2, PT_GNU_STACK, 0, 0, 16);  // without it, the dynamic linker would make stacks executable
  return image.take();
}

}  // namespace chassis
