// "hub:Org/Name@revision" becomes a folder of the local Hugging Face cache.
#include "host/config/paths.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "host/base/file.hpp"
#include "tests/host/config/example.hpp"

namespace chassis {
namespace {

constexpr const char* kVariables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};

class HubPaths : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "chassis_hub_test";
    std::filesystem::remove_all(folder_);
    for (const char* name : kVariables) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
    }
  }
  void TearDown() override {
    for (const char* name : kVariables) ::unsetenv(name);
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  void add(const std::string& cache, const std::string& model, const std::string& revision, const std::string& hash) {
    const std::string folder = folder_ + "/" + cache + "/" + model;
    create_directories(std::filesystem::path(folder + "/refs/" + revision).parent_path().string());
    create_directories(folder + "/snapshots/" + hash);
    write_file_atomic(folder + "/refs/" + revision, hash);
  }
  // The expanded path, or the problem, without the name of the test's folder.
  std::string expanded(std::string path) {
    const auto problem = expand_hub(path);
    std::string text = problem ? *problem : path;
    for (size_t at; (at = text.find(folder_ + "/")) != std::string::npos;) text.erase(at, folder_.size() + 1);
    return text;
  }
  void set(const char* name, const std::string& folder) { ::setenv(name, (folder_ + "/" + folder).c_str(), 1); }

  std::string folder_;
  std::map<std::string, std::string> before_;
};

TEST_F(HubPaths, AreSnapshotsOfARevision) {
  set("HF_HUB_CACHE", "c");
  add("c", "models--Org--Name", "main", "abc");
  add("c", "models--Org--Name", "refs/pr/1", "def");
  add("c", "models--gpt2", "main", "123");
  EXPECT_EQ(expanded("hub:Org/Name"), "c/models--Org--Name/snapshots/abc");
  EXPECT_EQ(expanded("hub:Org/Name@main"), "c/models--Org--Name/snapshots/abc");
  EXPECT_EQ(expanded("hub:Org/Name@refs/pr/1"), "c/models--Org--Name/snapshots/def");
  EXPECT_EQ(expanded("hub:Org/Name@def"), "c/models--Org--Name/snapshots/def");
  EXPECT_EQ(expanded("hub:gpt2"), "c/models--gpt2/snapshots/123");
  EXPECT_EQ(expanded("models/x"), "models/x");
}

TEST_F(HubPaths, TheCacheIsWhereHuggingFaceHasIt) {
  for (const auto& [name, value, cache] : {std::tuple("HOME", "home", "home/.cache/huggingface/hub"),
                                           {"XDG_CACHE_HOME", "xdg", "xdg/huggingface/hub"},
                                           {"HF_HOME", "hf", "hf/hub"},
                                           {"HF_HUB_CACHE", "c", "c"}}) {
    set(name, value);
    EXPECT_EQ(expanded("hub:Org/Name"), std::string("Org/Name is not in the Hugging Face cache ") + cache +
                                            "; get it with: hf download Org/Name");
    add(cache, "models--Org--Name", "main", "abc");
    EXPECT_EQ(expanded("hub:Org/Name"), std::string(cache) + "/models--Org--Name/snapshots/abc");
  }
}

TEST_F(HubPaths, AMissingRevisionIsSaidWithTheCommandThatGetsIt) {
  set("HF_HUB_CACHE", "c");
  add("c", "models--Org--Name", "main", "abc");
  EXPECT_EQ(expanded("hub:Org/Name@v2"),
            "the Hugging Face cache c has Org/Name, but not its revision 'v2'; get it with: hf download Org/Name "
            "--revision v2");
  std::filesystem::remove_all(folder_ + "/c/models--Org--Name/snapshots/abc");
  EXPECT_EQ(expanded("hub:Org/Name"),
            "revision 'main' of Org/Name is abc, but there is no folder c/models--Org--Name/snapshots/abc; get it "
            "with: hf download Org/Name");
}

TEST_F(HubPaths, OtherNamesAreRefused) {
  set("HF_HUB_CACHE", "c");
  for (const char* path : {"hub:", "hub:Org/", "hub:/Name", "hub:a/b/c", "hub:../x", "hub:Org/Name@",
                           "hub:Org/Name@../x", "hub:Org/Na me", "hub:Org/Name@a/../../b"})
    EXPECT_EQ(expanded(path), "expected hub:Org/Name or hub:Org/Name@revision") << path;
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_EQ(expanded("hub:Org/Name"), "HF_HUB_CACHE, HF_HOME and HOME are not set, so there is no Hugging Face cache");
}

TEST_F(HubPaths, AreReadOnlyWhereAModelDirectoryIsMeant) {
  set("HF_HUB_CACHE", "c");
  add("c", "models--Org--Name", "main", "abc");
  const std::string toml =
      "[model]\npath = \"hub:Org/Name\"\n[tokenizer]\npath = \"hub:Org/Name\"\n[[data.train]]\npath = \"hub:x/y\"\n";
  const Config config = load_config_text(toml, "a.toml", {});
  const std::string snapshot = folder_ + "/c/models--Org--Name/snapshots/abc";
  EXPECT_EQ(*config.settings().model.path, snapshot);
  EXPECT_EQ(*config.settings().tokenizer.path, snapshot);
  EXPECT_EQ(*config.settings().data.train[0].path, "hub:x/y");
}

}  // namespace
}  // namespace chassis
