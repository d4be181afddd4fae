// ELF parsing for plugins: notes, dynamic section, dynamic symbols.
#include "host/plugin/elf.hpp"

#include <elf.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "chassis/plugin.h"
#include "host/base/error.hpp"

namespace chassis {
namespace {

// Limits far above those of real libraries, so that a hostile file costs little time and memory.
constexpr uint64_t kMaxHeaders = 8192;
constexpr uint64_t kMaxNoteBytes = 4 << 20;  // all notes together
constexpr size_t kMaxNotes = 16;
constexpr uint64_t kMaxTableBytes = 64 << 20;
constexpr uint64_t kMaxDynamicEntries = 1 << 16;
constexpr uint64_t kMaxNameBytes = 4096;
constexpr uint64_t kMaxSymbolNameBytes = 1 << 16;

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
#error "unknown machine"
#endif

std::string machine_text(uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86-64";
    case EM_AARCH64:
      return "AArch64";
    case EM_RISCV:
      return "RISC-V";
    case EM_PPC64:
      return "PowerPC64";
    default:
      return fmt::format("ELF machine {}", machine);
  }
}

class Reader {
 public:
  Reader(const ElfSource& source, const std::string& name) : source_(source), name_(name) {
    if (source.num_bytes < sizeof(Elf64_Ehdr)) {
      throw fail(fmt::format("is not a shared library: {} bytes, an ELF header takes {}", source.num_bytes,
                             sizeof(Elf64_Ehdr)));
    }
    header_ = at<Elf64_Ehdr>(0, "ELF header");
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0) throw fail("is not a shared library: it has no ELF header");
    if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB) {
      throw fail("is not a 64-bit little-endian library");
    }
    if (header_.e_machine != kMachine) {
      throw fail(fmt::format("is built for {}, this host runs on {}", machine_text(header_.e_machine),
                             machine_text(kMachine)));
    }
    if (header_.e_type != ET_DYN) {
      throw fail(fmt::format("is not a shared library: ELF type {}, expected {}", header_.e_type, ET_DYN));
    }
    read_segments();
    read_sections();
  }

  Error fail(const std::string& what) const { return plugin_error(fmt::format("{} {}", name_, what)); }
  Error damaged(const std::string& what) const { return fail("is damaged: " + what); }

  template <class T>
  T at(uint64_t offset, std::string_view what) const {
    T value;
    read(offset, &value, sizeof(T), what);
    return value;
  }

  std::string bytes(uint64_t offset, uint64_t num_bytes, uint64_t limit, std::string_view what) const {
    if (num_bytes > limit) throw damaged(fmt::format("its {} claims {} bytes, more than {}", what, num_bytes, limit));
    if (offset > source_.num_bytes || num_bytes > source_.num_bytes - offset) throw outside(offset, num_bytes, what);
    std::string out(num_bytes, '\0');
    read(offset, out.data(), num_bytes, what);
    return out;
  }

  // The text from `offset` up to a NUL before `end`.
  std::string text(uint64_t offset, uint64_t end, uint64_t limit, std::string_view what) const {
    std::string out;
    char piece[256];
    while (out.size() <= limit) {
      if (offset >= end) throw damaged(fmt::format("its {} has no end", what));
      const uint64_t num_bytes = std::min<uint64_t>(sizeof(piece), end - offset);
      read(offset, piece, num_bytes, what);
      const void* nul = std::memchr(piece, 0, num_bytes);
      if (nul != nullptr) return out.append(piece, static_cast<const char*>(nul) - piece);
      out.append(piece, num_bytes);
      offset += num_bytes;
    }
    throw damaged(fmt::format("its {} is longer than {} bytes", what, limit));
  }

  const std::vector<Elf64_Phdr>& segments() const { return segments_; }
  const std::vector<Elf64_Shdr>& sections() const { return sections_; }

  std::string section_name(const Elf64_Shdr& section) const {
    if (header_.e_shstrndx >= sections_.size()) return "";
    const Elf64_Shdr& names = sections_[header_.e_shstrndx];
    if (names.sh_type != SHT_STRTAB || section.sh_name >= names.sh_size) return "";
    if (names.sh_size > source_.num_bytes || names.sh_offset > source_.num_bytes - names.sh_size) {
      throw outside(names.sh_offset, names.sh_size, "section names");
    }
    return text(names.sh_offset + section.sh_name, names.sh_offset + names.sh_size, kMaxNameBytes, "section name");
  }

  // The file offset of an address, and the number of bytes of its segment from there.
  std::optional<std::pair<uint64_t, uint64_t>> file_range(uint64_t address) const {
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_LOAD || address < segment.p_vaddr) continue;
      const uint64_t inside = address - segment.p_vaddr;
      if (inside >= segment.p_filesz || segment.p_offset > source_.num_bytes) continue;
      const uint64_t left = std::min(segment.p_filesz, source_.num_bytes - segment.p_offset);
      if (inside < left) return std::make_pair(segment.p_offset + inside, left - inside);
    }
    return std::nullopt;
  }

 private:
  Error outside(uint64_t offset, uint64_t num_bytes, std::string_view what) const {
    return damaged(
        fmt::format("its {} takes {} bytes at {}, but the file has {}", what, num_bytes, offset, source_.num_bytes));
  }

  void read(uint64_t offset, void* out, uint64_t num_bytes, std::string_view what) const {
    if (offset > source_.num_bytes || num_bytes > source_.num_bytes - offset || !source_.read(offset, out, num_bytes)) {
      throw outside(offset, num_bytes, what);
    }
  }

  void read_segments() {
    if (header_.e_phnum == 0) return;
    if (header_.e_phentsize != sizeof(Elf64_Phdr) || header_.e_phnum > kMaxHeaders) {
      throw damaged(fmt::format("{} program headers of {} bytes", header_.e_phnum, header_.e_phentsize));
    }
    const std::string table =
        bytes(header_.e_phoff, uint64_t{header_.e_phnum} * sizeof(Elf64_Phdr), kMaxTableBytes, "program header table");
    segments_.resize(header_.e_phnum);
    std::memcpy(segments_.data(), table.data(), table.size());
  }

  // A stripped file may have none.
  void read_sections() {
    if (header_.e_shoff == 0 || header_.e_shnum == 0) return;
    if (header_.e_shentsize != sizeof(Elf64_Shdr) || header_.e_shnum > kMaxHeaders) {
      throw damaged(fmt::format("{} section headers of {} bytes", header_.e_shnum, header_.e_shentsize));
    }
    const std::string table =
        bytes(header_.e_shoff, uint64_t{header_.e_shnum} * sizeof(Elf64_Shdr), kMaxTableBytes, "section header table");
    sections_.resize(header_.e_shnum);
    std::memcpy(sections_.data(), table.data(), table.size());
  }

  const ElfSource& source_;
  const std::string& name_;
  Elf64_Ehdr header_;
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Shdr> sections_;
};

uint64_t padded(uint64_t num_bytes) { return (num_bytes + 3) & ~uint64_t{3}; }

// Adds the Chassis notes of one note segment; skips others. Subtracts its bytes from `budget`.
void add_notes(const Reader& reader, uint64_t offset, uint64_t num_bytes, uint64_t& budget,
               std::vector<ElfNote>& notes) {
  const std::string bytes = reader.bytes(offset, num_bytes, budget, "note");
  budget -= num_bytes;
  uint64_t at = 0;
  while (bytes.size() - at >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr header;
    std::memcpy(&header, bytes.data() + at, sizeof(header));
    at += sizeof(header);
    const uint64_t left = bytes.size() - at;
    const uint64_t name_bytes = padded(header.n_namesz);
    if (name_bytes > left || header.n_descsz > left - name_bytes) {
      throw reader.damaged(fmt::format("a note claims {} bytes of name and {} of text, {} are left", header.n_namesz,
                                       header.n_descsz, left));
    }
    ElfNote note;
    note.name.assign(bytes, at, header.n_namesz);
    while (!note.name.empty() && note.name.back() == '\0') note.name.pop_back();
    note.type = header.n_type;
    note.body.assign(bytes, at + name_bytes, header.n_descsz);
    const bool known = std::any_of(notes.begin(), notes.end(), [&](const ElfNote& other) {
      return other.type == note.type && other.body == note.body;
    });
    if (note.name == CHASSIS_NOTE_NAME && !known) notes.push_back(std::move(note));
    if (notes.size() > kMaxNotes) throw reader.damaged(fmt::format("more than {} notes", kMaxNotes));
    at += std::min(left, name_bytes + padded(header.n_descsz));
  }
}

std::vector<ElfNote> read_notes(const Reader& reader) {
  std::vector<ElfNote> notes;
  uint64_t budget = kMaxNoteBytes;
  for (const Elf64_Phdr& segment : reader.segments()) {
    // Segments aligned to 8 bytes (.note.gnu.property) have other padding and never hold a Chassis note.
    if (segment.p_type == PT_NOTE && segment.p_align <= 4) {
      add_notes(reader, segment.p_offset, segment.p_filesz, budget, notes);
    }
  }
  for (const Elf64_Shdr& section : reader.sections()) {
    // By name, not by type: some compilers mark it PROGBITS.
    if (section.sh_type != SHT_NOBITS && reader.section_name(section) == CHASSIS_NOTE_SECTION) {
      add_notes(reader, section.sh_offset, section.sh_size, budget, notes);
    }
  }
  return notes;
}

void read_dynamic(const Reader& reader, ElfFacts& facts) {
  std::vector<uint64_t> needed, filters;
  std::optional<uint64_t> strings, soname, runpath, rpath;
  uint64_t strings_bytes = 0;
  for (const Elf64_Phdr& segment : reader.segments()) {
    if (segment.p_type != PT_DYNAMIC) continue;
    const uint64_t num_entries = segment.p_filesz / sizeof(Elf64_Dyn);
    if (num_entries > kMaxDynamicEntries) throw reader.damaged(fmt::format("{} dynamic entries", num_entries));
    for (uint64_t i = 0; i < num_entries; ++i) {
      const auto entry = reader.at<Elf64_Dyn>(segment.p_offset + i * sizeof(Elf64_Dyn), "dynamic section");
      if (entry.d_tag == DT_NULL) break;
      switch (entry.d_tag) {
        case DT_NEEDED:
          needed.push_back(entry.d_un.d_val);
          break;
        case DT_AUXILIARY:
        case DT_FILTER:
          filters.push_back(entry.d_un.d_val);
          break;
        case DT_SONAME:
          soname = entry.d_un.d_val;
          break;
        case DT_RUNPATH:
          runpath = entry.d_un.d_val;
          break;
        case DT_RPATH:
          rpath = entry.d_un.d_val;
          break;
        case DT_STRTAB:
          strings = entry.d_un.d_ptr;
          break;
        case DT_STRSZ:
          strings_bytes = entry.d_un.d_val;
          break;
        default:
          break;
      }
    }
  }
  if (!strings) {
    if (needed.empty() && filters.empty()) return;
    throw reader.damaged("its dynamic section has no string table");
  }
  const auto range = reader.file_range(*strings);
  if (!range) throw reader.damaged("its dynamic string table lies outside the file");
  const uint64_t limit = std::min(range->second, strings_bytes);
  const auto text_of = [&](uint64_t index) {
    if (index >= limit) throw reader.damaged("a dynamic string lies outside the string table");
    return reader.text(range->first + index, range->first + limit, kMaxNameBytes, "dynamic string");
  };
  for (const uint64_t index : needed) facts.needed.push_back(text_of(index));
  for (const uint64_t index : filters) facts.filters.push_back(text_of(index));
  if (soname) facts.soname = text_of(*soname);
  facts.is_rpath = !runpath && rpath;
  if (runpath)
    facts.runpath = text_of(*runpath);
  else if (rpath)
    facts.runpath = text_of(*rpath);
}

}  // namespace

ElfSource elf_source(std::string_view bytes) {
  return {bytes.size(), [bytes](uint64_t offset, void* out, uint64_t num_bytes) {
            if (offset > bytes.size() || num_bytes > bytes.size() - offset) return false;
            if (num_bytes != 0) std::memcpy(out, bytes.data() + offset, num_bytes);
            return true;
          }};
}

ElfFacts read_elf(const ElfSource& source, const std::string& name) {
  const Reader reader(source, name);
  ElfFacts facts;
  facts.notes = read_notes(reader);
  read_dynamic(reader, facts);
  return facts;
}

std::vector<ElfSymbol> read_elf_symbols(const ElfSource& source, const std::string& name) {
  const Reader reader(source, name);
  std::vector<ElfSymbol> symbols;
  for (const Elf64_Shdr& section : reader.sections()) {
    if (section.sh_type != SHT_DYNSYM) continue;
    if (section.sh_link >= reader.sections().size()) throw reader.damaged("its symbols have no names");
    const Elf64_Shdr& names_at = reader.sections()[section.sh_link];
    const std::string table = reader.bytes(section.sh_offset, section.sh_size, kMaxTableBytes, "symbol table");
    const std::string names = reader.bytes(names_at.sh_offset, names_at.sh_size, kMaxTableBytes, "symbol names");
    for (size_t at = 0; table.size() - at >= sizeof(Elf64_Sym); at += sizeof(Elf64_Sym)) {
      Elf64_Sym entry;
      std::memcpy(&entry, table.data() + at, sizeof(entry));
      const unsigned char binding = ELF64_ST_BIND(entry.st_info);
      if (binding == STB_LOCAL || entry.st_name == 0) continue;
      if (entry.st_name >= names.size()) throw reader.damaged("a symbol's name lies outside the table");
      const size_t end = names.find('\0', entry.st_name);
      if (end == std::string::npos || end - entry.st_name > kMaxSymbolNameBytes) {
        throw reader.damaged("a symbol's name has no end");
      }
      symbols.push_back(
          {names.substr(entry.st_name, end - entry.st_name), entry.st_shndx != SHN_UNDEF, binding == STB_GNU_UNIQUE});
    }
  }
  return symbols;
}

}  // namespace chassis
