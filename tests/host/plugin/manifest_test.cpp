// Parsing of manifests, also from damaged files.
#include "host/plugin/manifest.hpp"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/host/plugin/plugin_files.hpp"

namespace chassis {
namespace {

std::string plain_bytes() { return read_file(fixture("good/plain.so")); }

std::string refusal(std::string_view bytes) {
  const Thrown thrown = thrown_by([&] { read_plugin_bytes(bytes, "x.so"); });
  EXPECT_EQ(thrown.code, ExitCode::kPlugin);
  EXPECT_TEXT(thrown.text, "x.so");
  return thrown.text;
}

const std::string kMinimal =
    "chassis-manifest=1\nid=a\nversion=0.1.0\nabi=0.2\nabi-min-host=0.2\ntier=T0\nmember=ops/a\n";

std::string text_refusal(const std::string& text) {
  return thrown_by([&] { parse_manifest(text, "x.so"); }).text;
}

TEST(Manifest, IsReadWithoutLoadingTheFile) {
  const PluginFile file = read_plugin_file(fixture("good/plain.so"));
  const Manifest& m = file.manifest;
  EXPECT_EQ(m.id, "plain");
  EXPECT_EQ(m.version, "1.2.3");
  EXPECT_EQ(m.abi, (AbiVersion{0, 20}));
  EXPECT_EQ(m.abi_min_host, (AbiVersion{0, 20}));
  EXPECT_EQ(m.tier, Tier::kT0);
  EXPECT_EQ(m.members, (std::vector<MemberName>{{"ops", "plain"}, {"model", "needy"}}));
  EXPECT_EQ(m.required_services, std::vector<std::string>{"chassis.options/1"});
  EXPECT_EQ(m.architectures, std::vector<std::string>{"PlainForCausalLM"});
  EXPECT_EQ(m.operators, std::vector<std::string>{"aten::mm(Tensor self, Tensor mat2) -> Tensor"});
  EXPECT_TRUE(m.swappable);
  EXPECT_EQ(m.license, "Apache-2.0");
  EXPECT_EQ(m.git, "0123abcd");
  EXPECT_EQ(m.label(), "plugin 'plain' 1.2.3");
  EXPECT_NE(std::find(file.elf.needed.begin(), file.elf.needed.end(), "libc.so.6"), file.elf.needed.end());
}

TEST(Manifest, NamesTheFilesFromWhichItsTokenizersAreOpened) {
  const std::string text =
      "chassis-manifest=1\nid=x\nversion=1.0.0\nabi=0.4\nabi-min-host=0.4\ntier=T0\nmember=tokenizer/x\n"
      "license=MIT\n";
  EXPECT_EQ(parse_manifest(text + "file=tokenizer.json\nfile=*.parquet\n", "x.so").files,
            (std::vector<std::string>{"tokenizer.json", "*.parquet"}));
  for (const char* name : {"", ".", "..", "a/b", "/etc/passwd", "a b"})
    EXPECT_TEXT(thrown_by([&] { parse_manifest(text + "file=" + name + "\n", "x.so"); }).text,
                "the name of a file, without a folder");
}

TEST(Manifest, IsFoundInAStrippedLibrary) {
  const ScratchFolder folder;
  const std::string path = folder / "stripped.so";
  write_file_atomic(path, plain_bytes());
  ASSERT_EQ(std::system(("strip -s " + path).c_str()), 0);
  EXPECT_EQ(read_plugin_file(path).manifest.id, "plain");
}

TEST(Manifest, IsFoundWithoutSectionHeadersAndWithoutSegments) {
  std::string bytes = plain_bytes();
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  Elf64_Ehdr other = header;
  other.e_shnum = 0;
  std::memcpy(bytes.data(), &other, sizeof(other));
  EXPECT_EQ(read_plugin_bytes(bytes, "x.so").manifest.id, "plain");
  other = header;
  other.e_phnum = 0;
  std::memcpy(bytes.data(), &other, sizeof(other));
  EXPECT_EQ(read_plugin_bytes(bytes, "x.so").manifest.id, "plain");
}

TEST(Manifest, RefusesAFileThatIsNotALibrary) {
  EXPECT_TEXT(refusal(""), "0 bytes");
  EXPECT_TEXT(refusal(std::string(100, 'x')), "no ELF header");
  std::string bytes = plain_bytes();
  bytes[EI_CLASS] = ELFCLASS32;
  EXPECT_TEXT(refusal(bytes), "64-bit");
}

TEST(Manifest, RefusesALibraryOfAnotherMachineByName) {
  std::string bytes = plain_bytes();
  bytes[offsetof(Elf64_Ehdr, e_machine)] = static_cast<char>(EM_RISCV);
  bytes[offsetof(Elf64_Ehdr, e_machine) + 1] = 0;
  EXPECT_TEXT(refusal(bytes), "is built for RISC-V, this host runs on");
}

TEST(Manifest, RefusesALibraryWithoutANote) {
  EXPECT_TEXT(refusal(read_file(fixture("bad/no_note.so"))), "is not a Chassis plugin: it has no manifest note");
}

TEST(Manifest, DoesNotCrashOnTruncatedFiles) {
  const std::string bytes = plain_bytes();
  for (size_t num_bytes = 0; num_bytes < bytes.size(); num_bytes += 61) {
    try {
      read_plugin_bytes(std::string_view(bytes).substr(0, num_bytes), "x.so");
    } catch (const Error&) {
    }
  }
}

TEST(Manifest, DoesNotCrashOnRandomDamage) {
  const std::string bytes = plain_bytes();
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = bytes;
    for (int j = 0; j < 4; ++j) {
      // Every second byte in the headers, where damage has most effect.
      const size_t at = random() % (j % 2 == 0 ? 1024 : damaged.size());
      damaged[at] = static_cast<char>(random());
    }
    try {
      read_plugin_bytes(damaged, "x.so");
      read_elf_symbols(elf_source(damaged), "x.so");
    } catch (const Error&) {
    }
  }
}

TEST(Manifest, RefusesEachBadLineWithItsNumber) {
  EXPECT_NO_THROW(parse_manifest(kMinimal, "x.so"));
  EXPECT_TEXT(text_refusal("hello\n"), "begins with 'hello', this host reads 'chassis-manifest=1'");
  EXPECT_TEXT(text_refusal(kMinimal + "nonsense\n"), "manifest line 8: 'nonsense' is not key=value");
  EXPECT_TEXT(text_refusal(kMinimal + "id=b\n"), "manifest line 8: key id appears twice");
  EXPECT_TEXT(text_refusal(kMinimal + "member=ops\n"), "member is 'ops', expected kind/id");
  EXPECT_TEXT(text_refusal(kMinimal + "member=ops/a\n"), "expected each member once");
  EXPECT_TEXT(text_refusal(kMinimal + "member=ops/../a\n"), "expected kind/id");
  EXPECT_TEXT(text_refusal(kMinimal + "member=ops/auto\n"),
              "manifest line 8: member is 'ops/auto', expected another id: plugin = \"auto\" means that the program "
              "chooses");
  EXPECT_TEXT(text_refusal("chassis-manifest=1\nid=auto\n"), "manifest line 2: id is 'auto', expected another id");
  EXPECT_TEXT(text_refusal(kMinimal + "cuda=x\n"), "cuda is 'x', expected a CUDA major");
  EXPECT_TEXT(text_refusal(kMinimal + "sm=80,,90\n"), "sm is '80,,90', expected compute capabilities");
  EXPECT_TEXT(text_refusal(kMinimal + "swappable=yes\n"), "swappable is 'yes', expected 0 or 1");
  EXPECT_TEXT(text_refusal(kMinimal + "op=aten::mm\n"), "expected an operator with its schema");
  EXPECT_TEXT(text_refusal(kMinimal + "git=\x01\n"), "byte 0x01 is not text");
}

TEST(Manifest, RefusesAMissingKeyByName) {
  for (const std::string key : {"id", "version", "abi", "abi-min-host", "tier", "member"}) {
    std::string text = kMinimal;
    const size_t at = text.find("\n" + key + "=") + 1;
    text.erase(at, text.find('\n', at) + 1 - at);
    EXPECT_TEXT(text_refusal(text), "its manifest lacks '" + key + "'");
  }
}

TEST(Manifest, RefusesContradictions) {
  std::string t2 = kMinimal;
  t2.replace(t2.find("T0"), 2, "T2");
  EXPECT_TEXT(text_refusal(t2), "says tier T2 but lacks 'torch'");
  EXPECT_NO_THROW(parse_manifest(t2 + "torch=2.11.0\n", "x.so"));
  EXPECT_TEXT(text_refusal(kMinimal + "torch=2.11.0\n"), "a T0 plugin uses no LibTorch");
  std::string later = kMinimal;
  later.replace(later.find("host=0.2"), 8, "host=0.3");
  EXPECT_TEXT(text_refusal(later), "abi-min-host 0.3, which must not be later");
}

TEST(Manifest, IgnoresUnknownKeysAndPadding) {
  const Manifest m = parse_manifest(kMinimal + "colour=red\n" + std::string(3, '\0'), "x.so");
  EXPECT_EQ(m.id, "a");
}

TEST(Manifest, ComparesVersionsByNumber) {
  EXPECT_LT(compare_versions("2.9.1", "2.11.0"), 0);
  EXPECT_EQ(compare_versions("2.11", "2.11.0+cu130"), 0);
  EXPECT_GT(compare_versions("2.11.1", "2.11.0"), 0);
  EXPECT_LT(compare_versions("0.3.202611221200", "0.3.202611231200"), 0);
  EXPECT_GT(compare_versions("0.3.202611231200", "0.3.1"), 0);
  EXPECT_EQ(compare_versions("1.02", "1.2"), 0);
}

}  // namespace
}  // namespace chassis
