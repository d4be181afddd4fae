// Loading of libraries: private copies, pins, permissions, and the checks before a library is mapped.
#include "host/plugin/library.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "tests/host/plugin/fake_services.hpp"
#include "tests/host/plugin/plugin_files.hpp"

namespace chassis {
namespace {

std::string abi_of_host() { return std::to_string(CHASSIS_ABI_MAJOR) + "." + std::to_string(CHASSIS_ABI_MINOR); }

class PluginLoad : public testing::Test {
 protected:
  PluginLoad() { policy_.cache_folder = scratch_ / "cache"; }

  PluginLibrary load(const std::string& path) {
    const PluginFile file = read_plugin_file(path);
    check_plugin_file(file, policy_, services_);
    return PluginLibrary::load(file, policy_);
  }
  // The message of the refusal, which must have the exit code of plugins.
  std::string refusal(const std::string& path) {
    const Thrown thrown = thrown_by([&] { load(path); });
    EXPECT_EQ(thrown.code, ExitCode::kPlugin) << thrown.text;
    return thrown.text;
  }

  ScratchFolder scratch_;
  LoadPolicy policy_;
  FakeServices services_;
};

PluginFile described(const std::string& lines) {
  PluginFile file;
  file.path = "/p/x.so";
  file.manifest = parse_manifest(
      "chassis-manifest=1\nid=x\nversion=1.0.0\nabi=0.20\nabi-min-host=0.20\nmember=ops/x\n" + lines, "x.so");
  return file;
}

TEST_F(PluginLoad, MapsAPrivateCopyUnderItsHash) {
  const PluginLibrary library = load(fixture("good/plain.so"));
  EXPECT_EQ(library.sha256(), sha256_file(fixture("good/plain.so")));
  EXPECT_EQ(library.mapped_path(), policy_.cache_folder + "/" + library.sha256() + ".so");
  EXPECT_EQ(library.negotiated(), (AbiVersion{0, 20}));
  ASSERT_EQ(library.members().size(), 2u);
  EXPECT_EQ(view_of(library.member("ops", "plain").doc), "does nothing");
  const auto loaded = loaded_libraries();
  EXPECT_NE(std::find(loaded.begin(), loaded.end(), library.mapped_path()), loaded.end());
  struct stat status;
  ASSERT_EQ(::stat(policy_.cache_folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(PluginLoad, KeepsTheLibraryMappedAfterTheObjectIsGone) {
  std::string path;
  { path = load(fixture("good/plain.so")).mapped_path(); }
  const auto loaded = loaded_libraries();
  // Another test, with another cache folder, may have loaded it first.
  EXPECT_TRUE(std::any_of(loaded.begin(), loaded.end(), [&](const std::string& other) {
    return std::filesystem::path(other).filename() == std::filesystem::path(path).filename();
  }));
}

TEST_F(PluginLoad, ReplacesADamagedCopyInTheCache) {
  const std::string hash = sha256_file(fixture("good/plain.so"));
  ASSERT_EQ(::mkdir(policy_.cache_folder.c_str(), 0700), 0);
  write_file_atomic(policy_.cache_folder + "/" + hash + ".so", "rubbish");
  const PrivateCopy copy = make_private_copy(fixture("good/plain.so"), policy_.cache_folder, nullptr, "x");
  EXPECT_EQ(sha256_file(copy.path), hash);
}

TEST_F(PluginLoad, FallsBackToATemporaryCopyWithAWarning) {
  write_file_atomic(scratch_ / "file", "in the way");
  log::reset_counted_warnings();
  const PrivateCopy copy = make_private_copy(fixture("good/plain.so"), scratch_ / "file", nullptr, "x");
  EXPECT_TRUE(copy.is_temporary);
  EXPECT_EQ(sha256_file(copy.path), copy.sha256);
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0].first, "plugins copied to a temporary folder");
  remove_temporary(copy);
  EXPECT_FALSE(std::filesystem::exists(copy.path));
}

TEST_F(PluginLoad, MakesAnOpenCachePrivate) {
  ASSERT_EQ(::mkdir(policy_.cache_folder.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(policy_.cache_folder.c_str(), 0777), 0);
  EXPECT_FALSE(make_private_copy(fixture("good/plain.so"), policy_.cache_folder, nullptr, "x").is_temporary);
  struct stat status;
  ASSERT_EQ(::stat(policy_.cache_folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(PluginLoad, AcceptsTheRightPinAndRefusesAnother) {
  const std::string hash = sha256_file(fixture("good/plain.so"));
  policy_.pins["plain"] = parse_pin("plain", "sha256:" + hash, {"run.toml", 3, 8});
  EXPECT_NO_THROW(load(fixture("good/plain.so")));
  std::string upper = hash;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  policy_.pins = {{"plain@1.2.3", parse_pin("plain@1.2.3", "sha256:" + upper, {})}};
  EXPECT_NO_THROW(load(fixture("good/plain.so")));
  policy_.pins.clear();
  policy_.pins["plain"] = parse_pin("plain", "sha256:" + std::string(64, 'A'), {"run.toml", 3, 8});
  const std::string text = refusal(fixture("good/plain.so"));
  EXPECT_TRUE(text.starts_with("run.toml:3:8: plugin 'plain' 1.2.3 (")) << text;
  EXPECT_TEXT(text, "has sha256:" + hash + ", but it is pinned to sha256:" + std::string(64, 'a'));
}

TEST_F(PluginLoad, RefusesAPinThatIsNotAHash) {
  for (const std::string value : {"", "sha256:", "md5:00", "sha256:xyz"}) {
    const Thrown thrown = thrown_by([&] { parse_pin("plain", value, {"run.toml", 3, 8}); });
    EXPECT_EQ(thrown.code, ExitCode::kConfig);
    EXPECT_TEXT(thrown.text, "run.toml:3:8: the pin of plugin 'plain' is '" + value + "'");
  }
}

TEST_F(PluginLoad, RefusesAFileOrAFolderThatEveryoneMayWrite) {
  const std::string path = patched_plain(scratch_, "git=0123abcd", "git=0123abce");
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  EXPECT_TEXT(refusal(path), "is writable by everyone (mode 666)");
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  ASSERT_EQ(::chmod(scratch_.path().c_str(), 0777), 0);
  EXPECT_TEXT(refusal(path), "which is writable by everyone (mode 777)");
  ASSERT_EQ(::chmod(scratch_.path().c_str(), 01777), 0);
  const std::string sticky = refusal(path);
  EXPECT_TEXT(sticky, "which is writable by everyone (mode 1777)");
  EXPECT_TEXT(sticky,
              "move it to a folder of your own; or pin what is in the file: [plugins] pin = { ID = \"sha256:…\" }");
  EXPECT_TEXT(sticky, "[plugins] trust cannot lift this");
  EXPECT_EQ(sticky.find("chmod"), std::string::npos) << sticky;
  ASSERT_EQ(::chmod(scratch_.path().c_str(), 0755), 0);
  EXPECT_NO_THROW(load(path));
}

TEST_F(PluginLoad, RefusesALinkThroughAFolderThatEveryoneMayWrite) {
  const std::string open = scratch_ / "open", file = open + "/real.so", link = scratch_ / "plain.so";
  std::filesystem::create_directory(open);
  std::filesystem::copy(fixture("good/plain.so"), file);
  std::filesystem::create_symlink("open/real.so", link);
  EXPECT_NO_THROW(check_trust(link, {}));
  ASSERT_EQ(::chmod(open.c_str(), 01777), 0);
  EXPECT_TEXT(refusal(link), link + " lies in " + open + ", which is writable by everyone (mode 1777)");
  const std::string way = scratch_ / "way";
  std::filesystem::create_directory(way);
  std::filesystem::copy(fixture("good/plain.so"), scratch_ / "mine.so");
  std::filesystem::create_symlink("../mine.so", open + "/hop.so");
  std::filesystem::create_symlink("../open/hop.so", way + "/plain.so");
  EXPECT_TEXT(refusal(way + "/plain.so"), "lies in " + way + "/../open, which is writable by everyone");
}

TEST_F(PluginLoad, RefusesAFileOfAnotherOwnerUnlessItIsPinnedOrItsFolderIsTrusted) {
  const std::string path = patched_plain(scratch_, "git=0123abcd", "git=0123abcf");
  policy_.trust.owners = {};
  const std::string text = refusal(path);
  EXPECT_TEXT(text, path + " is not loaded: " + scratch_.path() + " belongs to user ");
  EXPECT_TEXT(text, "[plugins] trust = [\"" + scratch_.path() + "\"]");
  policy_.trust.folders = {"/nowhere", scratch_.path()};
  EXPECT_NO_THROW(load(path));
  policy_.trust.folders = {};
  policy_.pins["plain"] = {sha256_file(path), {}};
  EXPECT_NO_THROW(load(path));
}

TEST_F(PluginLoad, ComparesTrustedFoldersByWholeNames) {
  std::filesystem::create_directory(scratch_ / "shared");
  std::filesystem::create_directory(scratch_ / "shared2");
  std::filesystem::copy(fixture("good/plain.so"), scratch_ / "shared2/plain.so");
  TrustPolicy policy{{}, {scratch_ / "shared"}};
  EXPECT_TEXT(thrown_by([&] { check_trust(scratch_ / "shared2/plain.so", policy); }).text, "is not loaded");
  policy.folders = {scratch_.path()};
  EXPECT_NO_THROW(check_trust(scratch_ / "shared2/plain.so", policy));
}

TEST_F(PluginLoad, AdvisesNoPinForALibraryThatIsNeededByItsPath) {
  std::filesystem::create_directory(scratch_ / "open");
  const std::string path = scratch_ / "open/plain.so";
  std::filesystem::copy(fixture("good/plain.so"), path);
  ASSERT_EQ(::chmod((scratch_ / "open").c_str(), 0777), 0);
  const std::string by_path = thrown_by([&] { check_permissions(path, "", scratch_ / "plugin.so"); }).text;
  EXPECT_TEXT(by_path, "a pin cannot lift this");
  EXPECT_EQ(by_path.find("or pin what is in the file"), std::string::npos) << by_path;
  const std::string by_name = thrown_by([&] { check_permissions(path, "a/plain.so", scratch_ / "plugin.so"); }).text;
  EXPECT_TEXT(by_name, "or pin what is in the file");
}

// The plugin "borrower" and its two libraries, in a folder of their own.
class BorrowingPlugin : public PluginLoad {
 protected:
  BorrowingPlugin() {
    for (const char* name : {"borrower.so", "liblender.so", "libinner_lender.so"})
      std::filesystem::copy(fixture("borrower/" + std::string(name)), scratch_ / name);
    log::reset_counted_warnings();
  }
  // Puts another library in the place of the inner one.
  void replace_inner(const std::string& text) {
    write_file_atomic(inner_, patched(read_file(fixture("borrower/libinner_lender.so")), "lent by A", text));
  }
  void pin(const std::string& name, const std::string& path) { policy_.pins[name] = {sha256_file(path), {}}; }

  const std::string plugin_ = scratch_ / "borrower.so", lender_ = scratch_ / "liblender.so",
                    inner_ = scratch_ / "libinner_lender.so";
};

TEST_F(BorrowingPlugin, GetsPrivateCopiesOfItsLibraries) {
  const PluginLibrary library = load(plugin_);
  EXPECT_EQ(view_of(library.member("ops", "borrower").doc), "lent by A");
  ASSERT_EQ(library.libraries().size(), 2u);
  EXPECT_EQ(library.libraries()[0].path, lender_);
  EXPECT_EQ(library.libraries()[1].path, inner_);
  EXPECT_EQ(library.libraries()[1].needed_by, lender_);
  EXPECT_EQ(library.libraries()[1].sha256, sha256_file(inner_));
  EXPECT_EQ(library.content_text(), "sha256:" + sha256_file(plugin_) + " liblender.so sha256:" + sha256_file(lender_) +
                                        " libinner_lender.so sha256:" + sha256_file(inner_));
  for (const std::string& path : loaded_libraries()) EXPECT_FALSE(path.starts_with(scratch_ / "lib")) << path;
  // The name of a plugin or library that crashes is known.
  const auto loaded = loaded_libraries();
  EXPECT_TRUE(
      std::ranges::any_of(loaded, [](const std::string& path) { return path.ends_with("/libinner_lender.so"); }));
}

TEST_F(BorrowingPlugin, IsRefusedWithALibraryThatOthersCouldChange) {
  ASSERT_EQ(::chmod(inner_.c_str(), 0666), 0);
  const std::string open = refusal(plugin_);
  EXPECT_TEXT(open, "plugin 'borrower' 0.1.0 (" + plugin_ + ") needs libinner_lender.so: " + inner_ +
                        " is writable by everyone (mode 666)");
  EXPECT_TEXT(open,
              "[plugins] pin = { \"borrower/libinner_lender.so\" = \"sha256:…\" }, with the hash that `chassis "
              "plugins info " +
                  plugin_ + "` prints");
  ASSERT_EQ(::chmod(inner_.c_str(), 0644), 0);
  policy_.trust.owners = {};
  pin("borrower", plugin_);
  EXPECT_TEXT(refusal(plugin_),
              "needs liblender.so: " + lender_ + " is not loaded: " + scratch_.path() + " belongs to user ");
  pin("borrower/liblender.so", lender_);
  pin("borrower@0.1.0/libinner_lender.so", inner_);
  EXPECT_NO_THROW(load(plugin_));
}

TEST_F(BorrowingPlugin, IsRefusedWithALibraryThatIsNotPinnedToWhatItIs) {
  pin("borrower/libinner_lender.so", inner_);
  replace_inner("lent by B");
  EXPECT_TEXT(refusal(plugin_), "libinner_lender.so, which plugin 'borrower' 0.1.0 needs, (" + inner_ +
                                    ") has sha256:" + sha256_file(inner_) + ", but it is pinned to sha256:");
  policy_.only_pinned = "run/plugins.lock";
  pin("borrower", plugin_);
  EXPECT_TEXT(refusal(plugin_), lender_ + ", which plugin 'borrower' 0.1.0 (" + plugin_ +
                                    ") needs, is not listed in run/plugins.lock, and no other library may be used");
}

TEST_F(BorrowingPlugin, IsRefusedBesideOneThatBroughtAnotherLibraryOfThatName) {
  load(plugin_);
  replace_inner("lent by B");
  EXPECT_TEXT(refusal(plugin_), "brings " + inner_ + " (sha256:" + sha256_file(inner_) +
                                    "), but plugin 'borrower' 0.1.0 has brought another library of that name");
}

TEST_F(BorrowingPlugin, IsRefusedIfWhatALibraryNeedsDependsOnTheWorkingDirectory) {
  // "$ORIGIN" of the outer library, in its string table.
  write_file_atomic(lender_, patched(read_file(fixture("borrower/liblender.so")), "$ORIGIN", "lib/own"));
  EXPECT_TEXT(refusal(plugin_), "liblender.so (" + lender_ + ", which plugin 'borrower' 0.1.0 (" + plugin_ +
                                    ") needs): its library path 'lib/own' has the relative entry 'lib/own'");
}

TEST_F(BorrowingPlugin, IsFoundByTheUsersLibraryPathToo) {
  std::filesystem::create_directory(scratch_ / "far");
  for (const std::string& path : {lender_, inner_})
    std::filesystem::rename(path, scratch_ / ("far/" + std::filesystem::path(path).filename().string()));
  ::setenv("LD_LIBRARY_PATH", (scratch_ / "far").c_str(), 1);
  const NeededLibraries needed = needed_libraries(read_plugin_file(plugin_), {});
  ::unsetenv("LD_LIBRARY_PATH");
  ASSERT_EQ(needed.brought.size(), 2u);
  EXPECT_EQ(needed.brought[1].path, scratch_ / "far/libinner_lender.so");
}

TEST_F(PluginLoad, PrintsTheMessageOfTheDynamicLinkerAndAHint) {
  const std::string path = scratch_ / "plain.so";
  // Changes the name of a needed library in the string table.
  write_file_atomic(path, patched(read_file(fixture("good/plain.so")), "libc.so.6", "libx.so.6"));
  const std::string text = refusal(path);
  EXPECT_TEXT(text, "plugin 'plain' 1.2.3 cannot be loaded: libx.so.6: cannot open shared object file");
  EXPECT_TEXT(text, "hint: install that library where the dynamic linker finds it");
  EXPECT_EQ(text.find("Bad file descriptor"), std::string::npos) << text;
}

TEST_F(PluginLoad, RefusesALibraryPathThatDependsOnTheWorkingDirectory) {
  const auto refusal_of = [](const std::string& path) {
    PluginFile file = described("tier=T0\n");
    file.elf.runpath = path;
    return thrown_by([&] { check_library_path(file); }).text;
  };
  for (const char* path : {":", "/opt/lib:", ":/opt/lib", "/a::/b"})
    EXPECT_TEXT(refusal_of(path), "has an empty entry");
  EXPECT_TEXT(refusal_of("/opt:lib"),
              "plugin 'x' 1.0.0 (/p/x.so): its library path '/opt:lib' has the relative entry 'lib'");
  for (const char* path : {"", "/opt/lib", "$ORIGIN/../lib:/opt/lib", "${ORIGIN}"}) {
    PluginFile file = described("tier=T0\n");
    file.elf.runpath = path;
    EXPECT_NO_THROW(check_library_path(file)) << path;
  }
}

TEST_F(PluginLoad, RefusesAnotherAbiMajorAndNamesBoth) {
  const std::string path = patched_plain(scratch_, "abi=0.20\nabi-min-host=0.20", "abi=9.10\nabi-min-host=9.10");
  const std::string text = refusal(path);
  EXPECT_TEXT(text, "plugin 'plain' 1.2.3 (" + path + ") was built for ABI 9.10");
  EXPECT_TEXT(text, "this host has ABI " + abi_of_host());
  EXPECT_TEXT(text, "the majors 9 and 0 differ");
  EXPECT_TEXT(text, "hint: rebuild the plugin with this host's SDK");
}

TEST_F(PluginLoad, RefusesAPluginThatNeedsANewerHost) {
  const std::string path = patched_plain(scratch_, "abi=0.20\nabi-min-host=0.20", "abi=0.29\nabi-min-host=0.29");
  policy_.abi = {{0, 28}, 20};
  const std::string text = refusal(path);
  EXPECT_TEXT(text, "was built for ABI 0.29 and needs a host of at least 0.29; this host has ABI 0.28");
  EXPECT_TEXT(text, "the host is too old");
}

TEST_F(PluginLoad, RefusesAPluginThatIsTooOldForTheHost) {
  policy_.abi = {{0, 28}, 24};
  EXPECT_TEXT(refusal(fixture("good/plain.so")), "accepts plugins from 0.24: the plugin is too old");
}

TEST_F(PluginLoad, NegotiatesTheSmallerMinor) {
  const std::string newer = patched_plain(scratch_, "abi=0.20\nabi-min-host=0.20", "abi=0.29\nabi-min-host=0.20");
  policy_.abi = {{0, 30}, 20};
  EXPECT_EQ(load(newer).negotiated(), (AbiVersion{0, 29}));
  policy_.abi = {{0, 25}, 20};
  EXPECT_EQ(load(fixture("good/plain.so")).negotiated(), (AbiVersion{0, 20}));
  EXPECT_EQ(load(newer).negotiated(), (AbiVersion{0, 25}));
}

TEST_F(PluginLoad, RefusesAMissingServiceByName) {
  services_.offered.erase(CHASSIS_OPTIONS_ID);
  EXPECT_TEXT(refusal(fixture("good/plain.so")),
              "requires the service chassis.options/1, which this host (ABI " + abi_of_host() + ") does not offer");
}

TEST_F(PluginLoad, RefusesAChangedOperatorWithBothSchemas) {
  services_.operators["aten::mm"] = "aten::mm(Tensor a, Tensor b) -> Tensor";
  const std::string text = refusal(fixture("good/plain.so"));
  EXPECT_TEXT(text, "aten::mm(Tensor self, Tensor mat2) -> Tensor");
  EXPECT_TEXT(text, "aten::mm(Tensor a, Tensor b) -> Tensor");
}

TEST(PluginTier, T2AcceptsOneLibTorchVersionAndT1AllLaterOnes) {
  const PluginFile t2 = described("tier=T2\ntorch=2.11.0\n"), t1 = described("tier=T1\ntorch=2.10\n");
  EXPECT_NO_THROW(check_tier(t2, "2.11.0+cpu"));
  EXPECT_TEXT(
      thrown_by([&] { check_tier(t2, "2.12.0"); }).text,
      "plugin 'x' 1.0.0 (/p/x.so) is of tier T2 and was built with LibTorch 2.11.0; this host has LibTorch 2.12.0");
  EXPECT_NO_THROW(check_tier(t1, "2.12.0"));
  EXPECT_TEXT(thrown_by([&] { check_tier(t1, "2.9.1"); }).text,
              "is of tier T1 and needs LibTorch 2.10 or later; this host has LibTorch 2.9.1");
  EXPECT_TEXT(thrown_by([&] { check_tier(t1, ""); }).text, "this program runs without LibTorch");
  EXPECT_NO_THROW(check_tier(described("tier=T0\n"), ""));
}

void check_cuda(const PluginFile& file, const std::optional<DeviceVersions>& versions) {
  for (const DeviceCode& code : file.manifest.device_code) check_device_code(file, code, versions);
}

TEST(PluginCuda, RuntimeDriverAndDeviceMustFit) {
  PluginFile file = described("tier=T0\ncuda=13\nsm=80,90\n");
  const auto refused = [&](const DeviceVersions& facts) { return thrown_by([&] { check_cuda(file, facts); }).text; };
  EXPECT_NO_THROW(check_cuda(file, std::nullopt));
  EXPECT_NO_THROW(check_cuda(file, DeviceVersions{13, "86", 13}));
  EXPECT_NO_THROW(check_cuda(file, DeviceVersions{12, "80", 13})) << "it links the run-time library statically";
  EXPECT_TEXT(refused({12, "80", 12}), "was built for CUDA 13; the driver supports CUDA 12");
  EXPECT_TEXT(refused({13, "100", 13}), "has kernels for sm 80, 90; the device is sm 100");
  file.elf.needed = {"libm.so.6", "libcudart.so.13"};
  EXPECT_TEXT(refused({12, "80", 13}), "was built for CUDA 13; this host's LibTorch uses CUDA 12");
  EXPECT_NO_THROW(check_cuda(described("tier=T0\n"), DeviceVersions{12, "80", 12}));
  EXPECT_FALSE(described("tier=T0\nsm=80\n").manifest.has_device_code());
}

TEST(PluginCuda, TargetsRunOnTheirDevices) {
  const auto runs = [](const std::string& targets, int device) {
    try {
      check_cuda(described("tier=T0\ncuda=13\nsm=" + targets + "\n"), DeviceVersions{13, std::to_string(device), 13});
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(runs("80", 86));
  EXPECT_FALSE(runs("86", 80));
  EXPECT_TRUE(runs("90a", 90));
  EXPECT_FALSE(runs("90a", 100));
  EXPECT_FALSE(runs("100a", 103));
  EXPECT_TRUE(runs("100f", 103));
  EXPECT_FALSE(runs("100f", 120));
  EXPECT_TRUE(runs("80,ptx80", 120));
  EXPECT_FALSE(runs("ptx90", 80));
  EXPECT_FALSE(runs("ptx90a", 100));
}

TEST(PluginNeeded, RefusesASecondLibTorchOrNccl) {
  const std::vector<std::string> loaded = {"/t/lib/libtorch_cpu.so", "/t/lib/libc10.so", "/t/lib/libnccl.so.2"};
  PluginFile file = described("tier=T2\ntorch=2.11.0\n");
  file.elf.needed = {"libtorch_cpu.so", "libnccl.so.2", "libm.so.6"};
  EXPECT_NO_THROW(check_needed(file, loaded));
  file.elf.needed = {"libnccl.so.3"};
  EXPECT_TEXT(thrown_by([&] { check_needed(file, loaded); }).text,
              "needs libnccl.so.3, but this process has /t/lib/libnccl.so.2");
  file.elf.needed = {"libtorch_cpu-1a2b.so"};
  EXPECT_TEXT(thrown_by([&] { check_needed(file, loaded); }).text, "needs libtorch_cpu-1a2b.so, but this process has");
  file.elf.needed = {"/other/libtorch_cpu.so"};
  EXPECT_TEXT(thrown_by([&] { check_needed(file, loaded); }).text, "leads to /other/libtorch_cpu.so");
}

TEST(PluginNeeded, RefusesALibraryPathToAnotherLibTorch) {
  const ScratchFolder folder;
  write_file_atomic(folder / "libtorch_cpu.so", "another");
  PluginFile file = described("tier=T2\ntorch=2.11.0\n");
  file.path = folder / "x.so";
  file.elf.needed = {"libtorch_cpu.so"};
  file.elf.runpath = "/nowhere:$ORIGIN";
  EXPECT_TEXT(
      thrown_by([&] { check_needed(file, {"/t/lib/libtorch_cpu.so"}); }).text,
      "its library path leads to " + folder.path() + "/libtorch_cpu.so, but this process has /t/lib/libtorch_cpu.so");
  EXPECT_NO_THROW(check_needed(file, {folder / "libtorch_cpu.so"}));
}

TEST(PluginNeeded, RefusesLibTorchInTierT0) {
  PluginFile file = described("tier=T0\n");
  file.elf.needed = {"libc10.so"};
  EXPECT_TEXT(thrown_by([&] { check_needed(file, {}); }).text, "needs libc10.so, but its manifest says tier T0");
}

TEST_F(PluginLoad, RefusesALibraryWithoutEntry) {
  EXPECT_TEXT(refusal(fixture("bad/no_entry.so")), "does not export chassis_plugin_entry_v1");
}

TEST_F(PluginLoad, CatchesAnEntryThatThrows) {
  EXPECT_TEXT(refusal(fixture("bad/entry_throws.so")), "threw an exception out of its entry: the entry threw");
}

TEST_F(PluginLoad, ReportsTheMessageOfAFailedEntry) {
  const Thrown thrown = thrown_by([&] { load(fixture("bad/entry_fails.so")); });
  EXPECT_TEXT(thrown.text, "plugin 'faulty' 0.1.0: its entry failed: refused by the fixture");
}

TEST_F(PluginLoad, RefusesABadFactory) {
  EXPECT_TEXT(refusal(fixture("bad/no_factory.so")), "returned no factory from its entry");
  EXPECT_TEXT(refusal(fixture("bad/small_factory.so")),
              "the factory that its entry returned has 16 bytes, expected at least 24");
}

TEST_F(PluginLoad, RefusesMembersThatTheManifestDoesNotName) {
  EXPECT_TEXT(refusal(fixture("bad/other_member.so")), "member 0 is ops/other, but its manifest says ops/faulty");
  const std::string fewer = patched_plain(scratch_, "member=model/needy\n", "licensx=model/need\n");
  EXPECT_TEXT(refusal(fewer), "has 2 members, but its manifest names 1");
}

TEST_F(PluginLoad, RefusesAFileThatChangedSinceItWasChecked) {
  const std::string path = patched_plain(scratch_, "git=0123abcd", "git=0123abc0");
  const PluginFile file = read_plugin_file(path);
  patched_plain(scratch_, "tier=T0\n", "tier=T0\n");
  EXPECT_TEXT(thrown_by([&] { PluginLibrary::load(file, policy_); }).text, "changed while it was being loaded");
}

TEST_F(PluginLoad, PrunesTheCacheByAgeAndBySize) {
  std::filesystem::create_directory(policy_.cache_folder);
  const auto copy_of = [&](const std::string& name, int hours) {
    const std::string path = policy_.cache_folder + "/" + name;
    write_file_atomic(path, std::string(1000, 'x'));
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
    return path;
  };
  const std::string old = copy_of("old.so", 24 * 31), unused = copy_of("unused.so", 48),
                    recent = copy_of("recent.so", 3), now = copy_of("now.so", 0);
  const auto exists = [](const std::string& path) { return std::filesystem::exists(path); };
  prune_plugin_cache(policy_.cache_folder);
  EXPECT_FALSE(exists(old));
  EXPECT_TRUE(exists(unused));
  prune_plugin_cache(policy_.cache_folder, 2000);
  EXPECT_FALSE(exists(unused));
  EXPECT_TRUE(exists(recent));
  prune_plugin_cache(policy_.cache_folder, 10);
  EXPECT_FALSE(exists(recent));
  EXPECT_TRUE(exists(now)) << "another process may be about to map it";
}

TEST(PluginCache, FollowsTheEnvironment) {
  const char* home = std::getenv("HOME");
  const std::string old_home = home == nullptr ? "" : home;
  ::setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(plugin_cache_folder(), "/xdg/chassis/plugins");
  ::unsetenv("XDG_CACHE_HOME");
  ::setenv("HOME", "/home/u", 1);
  EXPECT_EQ(plugin_cache_folder(), "/home/u/.cache/chassis/plugins");
  ::unsetenv("HOME");
  EXPECT_EQ(plugin_cache_folder(), "");
  if (home != nullptr) ::setenv("HOME", old_home.c_str(), 1);
}

}  // namespace
}  // namespace chassis
