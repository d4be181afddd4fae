// Reads what the plugin layer needs from a 64-bit little-endian ELF shared object, checking every offset.
// It does not load, relocate or interpret code.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

struct ElfNote {
  std::string name;
  uint32_t type = 0;
  std::string body;
};

struct ElfSymbol {
  std::string name;
  bool defined = false;
  bool unique = false;  // STB_GNU_UNIQUE: one object for the whole process
};

struct ElfFacts {
  std::vector<ElfNote> notes;       // notes named "Chassis", without duplicates
  std::vector<std::string> needed;  // DT_NEEDED
  std::vector<std::string> filters;  // DT_AUXILIARY and DT_FILTER: libraries whose symbols replace its own
  std::string soname;
  std::string runpath;    // DT_RUNPATH or DT_RPATH
  bool is_rpath = false;  // it is DT_RPATH: searched before LD_LIBRARY_PATH, and for its dependencies' needs too
};

// Random access to a file or to memory; `read` returns false if the range is out of bounds.
struct ElfSource {
  uint64_t num_bytes = 0;
  std::function<bool(uint64_t offset, void* out, uint64_t num_bytes)> read;
};

ElfSource elf_source(std::string_view bytes);

// Throws a plugin error that begins with `name` if this is not a shared object for this machine, or is damaged.
ElfFacts read_elf(const ElfSource& source, const std::string& name);
// Global dynamic symbols, imported and exported.
std::vector<ElfSymbol> read_elf_symbols(const ElfSource& source, const std::string& name);

}  // namespace chassis
