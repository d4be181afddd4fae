// Search of plugin folders, lookup of members, and the output of `plugins list` and `plugins info`.
#include "host/plugin/search.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/plugin/plugin_list.hpp"
#include "tests/host/plugin/plugin_files.hpp"

namespace chassis {
namespace {

uint64_t num_warnings(const std::string& key) {
  for (const auto& [name, count] : counted_warnings()) {
    if (name == key) return count;
  }
  return 0;
}

PluginIndex index_of(const std::vector<std::string>& folders) {
  std::vector<PluginFolder> list;
  for (const std::string& path : folders) list.push_back({path, "test", true, {}});
  return PluginIndex(list);
}

std::string list_text(const PluginIndex& index, const std::function<std::string(const PluginFile&)>& refusal = {}) {
  return plugin_list_text(index, listed_members(index, refusal));
}

TEST(PluginSearch, ListsTheFoldersInOrder) {
  ::setenv("CHASSIS_PLUGIN_PATH", "/env/a::/env/b", 1);
  ::setenv("XDG_DATA_HOME", "/data", 1);
  const auto folders = plugin_folders({"/line"}, {"/config"}, {"run.toml", 4, 9});
  ::unsetenv("CHASSIS_PLUGIN_PATH");
  ::unsetenv("XDG_DATA_HOME");
  ASSERT_EQ(folders.size(), 6u);
  EXPECT_EQ(folders[0].path, "/line");
  EXPECT_EQ(folders[1].path, "/config");
  EXPECT_EQ(folders[1].origin, "run.toml:4:9");
  EXPECT_EQ(folders[2].path, "/env/a");
  EXPECT_EQ(folders[3].path, "/env/b");
  EXPECT_EQ(folders[4].path, "/data/chassis/plugins");
  EXPECT_EQ(folders[4].origin, "the user's own");
  EXPECT_TRUE(folders[5].path.ends_with("/lib/chassis/plugins")) << folders[5].path;
}

TEST(PluginSearch, TheUsersOwnFolderIsInHomeByDefault) {
  const std::string home = std::getenv("HOME") ? std::getenv("HOME") : "";
  ::unsetenv("XDG_DATA_HOME");
  ::setenv("HOME", "/home/u", 1);
  EXPECT_EQ(plugin_folders({}, {}, {})[0].path, "/home/u/.local/share/chassis/plugins");
  ::setenv("HOME", home.c_str(), 1);
}

TEST(PluginSearch, IgnoresAMissingUserFolderSilently) {
  log::reset_counted_warnings();
  PluginIndex{{{"/no/such/folder", "the user's own", false, {}}}};
  EXPECT_TRUE(counted_warnings().empty());
}

TEST(PluginSearch, IndexesMembersByKindAndId) {
  const PluginIndex index = index_of({fixture("good"), fixture("failing")});
  ASSERT_NE(index.find("ops", "plain"), nullptr);
  EXPECT_EQ(index.find("optimizer", "plain"), nullptr);
  EXPECT_EQ(index.at("model", "needy").manifest.id, "plain");
  EXPECT_EQ(index.library("failing")->manifest.id, "failing");
  EXPECT_EQ(index.library("failing@" + index.library("failing")->manifest.version), index.library("failing"));
  EXPECT_EQ(index.library("failing@99.0.0"), nullptr);
  EXPECT_EQ(index.ids("model"), std::vector<std::string>{"needy"});
}

TEST(PluginSearch, RefusesAMissingFolderThatTheUserNamed) {
  const PluginFolder line{"/no/such/folder", "--plugin-path", true, {}};
  Thrown thrown = thrown_by([&] { PluginIndex{{line}}; });
  EXPECT_EQ(thrown.code, ExitCode::kConfig);
  EXPECT_TEXT(thrown.text, "plugin folder /no/such/folder does not exist (from --plugin-path)");
  const PluginFolder config{fixture("good/plain.so"), "run.toml:4:9", true, {"run.toml", 4, 9}};
  thrown = thrown_by([&] { PluginIndex{{config}}; });
  EXPECT_TRUE(thrown.text.starts_with("run.toml:4:9: plugin folder ")) << thrown.text;
  EXPECT_TEXT(thrown.text, "is a file, expected a folder");
}

TEST(PluginSearch, CountsAMissingFolderOfTheEnvironment) {
  log::reset_counted_warnings();
  PluginIndex{{{"/no/such/folder", "CHASSIS_PLUGIN_PATH", false, {}}, {"/nor/this", "installed", false, {}}}};
  EXPECT_EQ(num_warnings("plugin folders ignored"), 1u);
}

TEST(PluginSearch, UsesTheFirstOfTwoAndCountsTheSecond) {
  const ScratchFolder folder;
  std::filesystem::copy(fixture("good/plain.so"), folder / "again.so");
  log::reset_counted_warnings();
  const PluginIndex index = index_of({folder.path(), fixture("good"), folder.path() + "/."});
  EXPECT_EQ(num_warnings("plugins found twice"), 0u) << "nobody has asked for it";
  EXPECT_EQ(index.at("ops", "plain").path, folder / "again.so");
  EXPECT_EQ(index.at("ops", "plain").path, folder / "again.so");
  EXPECT_EQ(index.shadowed().size(), 2u);
  EXPECT_EQ(num_warnings("plugins found twice"), 1u);
}

// The plugin "plain" with another version, of the same length as "1.2.3".
void write_version(const std::string& path, const std::string& version) {
  std::string bytes = read_file(fixture("good/plain.so"));
  for (size_t at = 0; (at = bytes.find("version=1.2.3\n", at)) != std::string::npos; ++at)
    bytes.replace(at + std::strlen("version="), version.size(), version);
  write_file_atomic(path, bytes);
}

TEST(PluginSearch, UsesTheNewestVersionOfAFolder) {
  const ScratchFolder folder;
  write_version(folder / "a.so", "1.3.0");
  write_version(folder / "b.so", "1.9.2");
  write_version(folder / "c.so", "1.2.9");
  log::reset_counted_warnings();
  const PluginIndex index = index_of({folder.path(), fixture("good")});
  EXPECT_EQ(index.at("ops", "plain@1.3.0").path, folder / "a.so");
  EXPECT_EQ(num_warnings("plugins found twice"), 0u) << "a version says which one is meant";
  EXPECT_EQ(index.at("ops", "plain").path, folder / "b.so");
  EXPECT_EQ(num_warnings("plugins found twice"), 3u);
  EXPECT_EQ(num_warnings("libraries with the same id"), 0u);
  EXPECT_EQ(index.at("ops", "plain@1.2.9").path, folder / "c.so");
  EXPECT_EQ(index.at("ops", "plain@1.2.3").path, fixture("good/plain.so"));
  EXPECT_TEXT(thrown_by([&] { index.at("ops", "plain@2.0.0"); }).text,
              "plugin 'plain' of kind 'ops' is not installed in version 2.0.0; there is 1.3.0, 1.9.2, 1.2.9, 1.2.3");
}

TEST(PluginSearch, PrefersAnEarlierFolderToANewerVersion) {
  const ScratchFolder folder;
  write_version(folder / "old.so", "0.9.0");
  EXPECT_EQ(index_of({folder.path(), fixture("good")}).at("ops", "plain").path, folder / "old.so");
}

TEST(PluginSearch, CountsLibrariesWithTheSameIdAndDifferentMembers) {
  const ScratchFolder folder;
  std::string bytes = read_file(fixture("good/plain.so"));
  for (size_t at = 0; (at = bytes.find("member=ops/plain\n", at)) != std::string::npos; ++at)
    bytes.replace(at, std::strlen("member=ops/plain"), "member=ops/blain");
  write_file_atomic(folder / "other.so", bytes);
  log::reset_counted_warnings();
  index_of({folder.path(), fixture("good")});
  EXPECT_EQ(num_warnings("libraries with the same id"), 1u);
}

TEST(PluginSearch, CountsFilesThatAreNotPlugins) {
  const ScratchFolder folder;
  write_file_atomic(folder / "text.so", "hello");
  write_file_atomic(folder / "readme.txt", "hello");
  log::reset_counted_warnings();
  const PluginIndex index = index_of({folder.path()});
  ASSERT_EQ(index.ignored().size(), 1u);
  EXPECT_TEXT(index.ignored()[0].reason, "text.so is not a shared library");
  EXPECT_EQ(num_warnings("plugin files ignored"), 1u);
}

TEST(PluginSearch, LibrariesThatPluginsNeedAreNotTakenForPlugins) {
  log::reset_counted_warnings();
  const PluginIndex index = index_of({fixture("borrower")});
  EXPECT_EQ(index.files().size(), 1u);
  EXPECT_TRUE(index.ignored().empty()) << index.ignored()[0].reason;
  EXPECT_EQ(num_warnings("plugin files ignored"), 0u);
}

TEST(PluginSearch, SuggestsAndListsInstalledMembers) {
  const PluginIndex index = index_of({fixture("good"), fixture("failing")});
  std::string text = thrown_by([&] { index.at("ops", "plan"); }).text;
  EXPECT_TEXT(text, "unknown plugin 'plan' of kind 'ops' (did you mean 'plain'?)");
  EXPECT_TEXT(text, "installed: bad_default, ");
  EXPECT_TEXT(text, "searched " + fixture("good") + " (test)");
  text = thrown_by([&] { index.at("ops", "needy"); }).text;
  EXPECT_TEXT(text, "unknown plugin 'needy' of kind 'ops'; there is 'needy' of kind 'model'; installed: ");
  text = thrown_by([&] { index.at("model", "plain"); }).text;
  EXPECT_TEXT(text, "there is 'plain' of kind 'ops'; library 'plain' offers it as 'needy'; installed: ");
}

TEST(PluginSearch, AnswersNamesOfOptimizersOfOtherTrainers) {
  const PluginIndex index = index_of({CHASSIS_TEST_PLUGIN_DIR});
  EXPECT_TEXT(thrown_by([&] { index.at("optimizer", "paged_adamw_8bit"); }).text,
              "unknown plugin 'paged_adamw_8bit' of kind 'optimizer' (here: 'adamw8bit'); installed: ");
}

TEST(PluginSearch, FindsAFileByAnyOfItsNames) {
  const PluginIndex index = index_of({fixture("good")});
  for (const std::string name : {"plain", "needy", "model/needy", "ops/plain"})
    EXPECT_EQ(index.at_name(name).path, fixture("good/plain.so")) << name;
  EXPECT_TEXT(thrown_by([&] { index.at_name("plian"); }).text,
              "no plugin 'plian' is installed, and there is no such file (did you mean 'plain'?)");
  const ScratchFolder folder;
  write_file_atomic(folder / "plain.so", "hello");
  const std::string damaged = folder / "plain.so";
  EXPECT_TEXT(thrown_by([&] { index_of({folder.path()}).at_name("plain"); }).text, damaged + " cannot be used");
  std::filesystem::copy(fixture("failing/failing.so"), folder / "failing.so");
  const std::string text = thrown_by([&] { index_of({folder.path()}).at("ops", "plain"); }).text;
  EXPECT_TEXT(text, "plugin 'plain' of kind 'ops': " + damaged + " cannot be used\ncaused by: " + damaged);
}

TEST(PluginSearch, ReportsThatNoPluginOfAKindIsInstalled) {
  const PluginIndex index = index_of({fixture("good")});
  EXPECT_TEXT(thrown_by([&] { index.at("quant", "bnb4"); }).text,
              "no plugin of kind 'quant' is installed, so 'bnb4' cannot be used");
  EXPECT_TEXT(thrown_by([&] { PluginIndex().at("quant", "bnb4"); }).text,
              "searched nowhere: there is no plugin folder");
}

TEST(PluginSearch, ShowsWhyAFileOfThatNameWasIgnored) {
  const ScratchFolder folder;
  std::filesystem::copy(fixture("good/plain.so"), folder / "plain.so");
  write_file_atomic(folder / "sdpa.so", "hello");
  const PluginIndex index = index_of({folder.path()});
  EXPECT_TEXT(thrown_by([&] { index.at("ops", "sdpa"); }).text,
              "caused by: " + folder.path() + "/sdpa.so is not a shared");
}

TEST(PluginSearch, RefusesToReplaceADamagedPluginByALaterOne) {
  const ScratchFolder folder;
  write_file_atomic(folder / "plain.so", "hello");
  const std::string text = thrown_by([&] { index_of({folder.path(), fixture("good")}).at("ops", "plain"); }).text;
  EXPECT_TEXT(text, folder.path() + "/plain.so, which comes before " + fixture("good/plain.so") + ", cannot be used");
  EXPECT_TEXT(text, "caused by: " + folder.path() + "/plain.so is not a shared library");
  EXPECT_NO_THROW(index_of({fixture("good"), folder.path()}).at("ops", "plain")) << "the good one comes first";
  EXPECT_NO_THROW(index_of({folder.path(), fixture("good")}).at("model", "needy")) << "a member of another name";
}

TEST(PluginSearch, CountsBrokenLinksAndPipes) {
  const ScratchFolder folder;
  std::filesystem::create_symlink("nowhere.so", folder / "gone.so");
  ASSERT_EQ(::mkfifo((folder / "pipe.so").c_str(), 0600), 0);
  std::filesystem::copy(fixture("good/plain.so"), folder / "plain.so");
  const PluginIndex index = index_of({folder.path()});
  ASSERT_EQ(index.ignored().size(), 2u);
  EXPECT_TEXT(index.ignored()[0].reason, "gone.so");
  EXPECT_TEXT(index.ignored()[1].reason, "pipe.so");
  EXPECT_NE(index.find("ops", "plain"), nullptr);
}

TEST(PluginSearch, IndexesOneFileByItsPath) {
  const PluginIndex index = PluginIndex::of_file(fixture("good/plain.so"));
  EXPECT_EQ(index.at("ops", "plain").path, fixture("good/plain.so"));
  EXPECT_EQ(index.files().size(), 1u);
}

TEST(PluginInspect, NamesMembersThatThisHostCannotUse) {
  const ScratchFolder folder;
  const std::string kind = patched_plain(folder, "member=model/needy", "member=video/needy");
  std::string text = list_text(index_of({folder.path()}));
  EXPECT_TEXT(text,
              "unusable here: video/needy in " + kind + ": this host does not use kind 'video'; it uses model, ops, ");
  EXPECT_EQ(text.find("unusable here: ops/plain"), std::string::npos) << text;
  text = list_text(index_of({folder.path()}), [](const PluginFile&) { return "it is refused"; });
  EXPECT_TEXT(text, "unusable here: ops/plain in " + kind + ": it is refused\n");
  EXPECT_TEXT(plugin_info_text(read_plugin_file(kind)),
              "video/needy: unusable here: this host does not use kind 'video'");
  const std::string abi = patched_plain(folder, "abi=0.20\nabi-min-host=0.20", "abi=9.00\nabi-min-host=9.00");
  text = list_text(index_of({folder.path()}));
  EXPECT_TEXT(text,
              "unusable here: ops/plain in " + abi + ": plugin 'plain' 1.2.3 (" + abi + ") was built for ABI 9.0");
}

TEST(PluginSearch, FindsTheModelOfAnArchitecture) {
  const PluginIndex index = index_of({fixture("good")});
  EXPECT_EQ(index.model_for_architecture("PlainForCausalLM"), (MemberName{"model", "needy"}));
  EXPECT_TEXT(thrown_by([&] { index.model_for_architecture("PlaneForCausalLM"); }).text,
              "no installed model plugin supports the architecture PlaneForCausalLM; supported: PlainForCausalLM");
}

TEST(PluginInspect, ListsMembersAndIgnoredFiles) {
  const ScratchFolder folder;
  write_file_atomic(folder / "text.so", "hello");
  const std::string text = list_text(index_of({fixture("good"), folder.path()}));
  EXPECT_TEXT(text, "model  needy   plain 1.2.3  T0    " + fixture("good/plain.so"));
  EXPECT_TEXT(text, "ignored: " + folder.path() + "/text.so");
  EXPECT_TEXT(text, fixture("good") + " (test)");
}

TEST(PluginInspect, ShowsTheManifestAndTheHash) {
  const std::string text = plugin_info_text(read_plugin_file(fixture("good/plain.so")));
  EXPECT_TEXT(text, "plain 1.2.3\n");
  EXPECT_TEXT(text, "hash           sha256:");
  EXPECT_TEXT(text, "operator       aten::mm(Tensor self, Tensor mat2) -> Tensor");
  EXPECT_TEXT(text, "links          libc.so.6");
}

TEST(PluginInspect, ShowsTheOptions) {
  OptionSpec lr{"lr", OptionType::kFloat, "0.1", 0.0, 1.0, {}, "how far", false};
  OptionSpec path{"path", OptionType::kString, "", {}, {}, {"a", "b"}, "", true};
  const std::string text = member_options_text({"optimizer", "adamw"}, "AdamW", {lr, path});
  EXPECT_TEXT(text, "optimizer/adamw: AdamW\n  lr = 0.1  # a number, between 0 and 1\n      how far\n");
  EXPECT_TEXT(text, "  path = (required)  # a string: \"a\" or \"b\"\n");
}

}  // namespace
}  // namespace chassis
