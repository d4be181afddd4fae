// Reads untrusted directories: plain files are listed, links and odd names are not.
#include "host/checkpoint/source_directory.hpp"

#include <sys/stat.h>

#include "fixture.hpp"

namespace chassis {
namespace {

using namespace testing;

std::vector<std::string> paths_in(const std::string& path) {
  std::vector<std::string> out;
  const SourceDirectory directory(path);
  for (const auto& file : directory.files()) out.push_back(file.path);
  return out;
}

TEST(SourceDirectory, ListsPlainFilesTwoLevelsDeep) {
  const TemporaryDirectory dir;
  write_text(dir / "b", "12");
  write_text(dir / ".hidden", "x");
  write_text(dir / "odd name", "x");
  fs::create_directories(dir / "sharded/deeper");
  write_text(dir / "sharded/a", "1");
  write_text(dir / "sharded/deeper/x", "1");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(paths_in(dir.path()), (std::vector<std::string>{"b", "sharded/a"}));
  SourceDirectory source(dir.path());
  EXPECT_EQ(source.files()[0].num_bytes, 2u);
  EXPECT_EQ(source.find("sharded/a"), 1);
  EXPECT_EQ(source.find("sharded"), -1);
  EXPECT_EQ(source.read_text("b", 10), "12");
  EXPECT_NE(error_of([&] { source.read_text("b", 1); }).find("has 2 bytes, at most 1"), std::string::npos);
}

TEST(SourceDirectory, FollowsNoLinksInACheckpoint) {
  const TemporaryDirectory dir;
  write_text(dir / "secret", "secret");
  fs::create_directories(dir / "model/folder");
  write_text(dir / "model/manifest.json", "{}");
  fs::create_symlink("../secret", dir / "model/model.safetensors");
  fs::create_symlink("/etc", dir / "model/etc");
  fs::create_symlink("../../secret", dir / "model/folder/x");
  SourceDirectory source(dir / "model");
  EXPECT_EQ(source.files().size(), 1u);
  EXPECT_EQ(source.links(), (std::vector<std::string>{"etc", "folder/x", "model.safetensors"}));
  const std::string message = error_of([&] { source.find_file("folder/x"); });
  EXPECT_NE(message.find("folder/x' is a link to '../../secret', expected a file"), std::string::npos) << message;
}

TEST(SourceDirectory, AManifestThatIsALinkIsNotFollowed) {
  const TemporaryDirectory dir;
  write_text(dir / "elsewhere.json", "{}");
  write_text(dir / "shard", "elements");
  fs::create_directories(dir / "step");
  fs::create_symlink("../elsewhere.json", dir / "step/manifest.json");
  fs::create_symlink("../shard", dir / "step/a.safetensors");
  SourceDirectory source(dir / "step");
  EXPECT_EQ(source.find("manifest.json"), -1);
  const std::string message = error_of([&] { source.find_file("manifest.json"); });
  EXPECT_NE(message.find("manifest.json' is a link to '../elsewhere.json', expected a file"), std::string::npos)
      << message;
}

TEST(SourceDirectory, FollowsLinksToFilesInAModelDirectory) {
  const TemporaryDirectory dir;
  const std::string hash(64, 'a');
  fs::create_directories(dir / "blobs");
  fs::create_directories(dir / "snapshots/rev/folder");
  write_text(dir / ("blobs/" + hash), "{}");
  write_text(dir / "blobs/name", "other");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const std::string model = dir / "snapshots/rev/";
  fs::create_symlink("../../blobs/" + hash, model + "config.json");
  fs::create_symlink(dir / "blobs/name", model + "model.safetensors");
  fs::create_symlink("../../../blobs/name", model + "folder/x");
  fs::create_symlink("../../pipe", model + "pipe");
  fs::create_symlink("/nowhere", model + "gone");
  fs::create_symlink("/etc", model + "etc");
  SourceDirectory source(dir / "snapshots/rev");
  ASSERT_EQ(paths_in(model), (std::vector<std::string>{"config.json", "folder/x", "model.safetensors"}));
  EXPECT_EQ(source.read_text("config.json", 10), "{}");
  EXPECT_EQ(source.read_text("model.safetensors", 10), "other");
  EXPECT_EQ(source.links(), (std::vector<std::string>{"etc", "gone", "pipe"}));
  EXPECT_NE(error_of([&] { source.find_file("gone"); }).find("is a link to '/nowhere', which does not exist"),
            std::string::npos);
  EXPECT_NE(error_of([&] { source.find_file("pipe"); }).find("a FIFO"), std::string::npos);
  EXPECT_EQ(source.find_file("nothing"), -1);
}

TEST(SourceDirectory, RefusesAFileThatBecameALinkOrAnotherSizeSinceItWasListed) {
  const TemporaryDirectory dir;
  write_text(dir / "secret", "secret");
  fs::create_directories(dir / "model/sub");
  write_text(dir / "model/manifest.json", "{}");
  write_text(dir / "model/a", "aaaaaa");
  write_text(dir / "model/b", "bbbbbb");
  write_text(dir / "model/sub/c", "cccccc");
  SourceDirectory source(dir / "model");
  fs::remove(dir / "model/a");
  fs::create_symlink("../secret", dir / "model/a");
  write_text(dir / "model/b", "b");
  fs::remove_all(dir / "model/sub");
  fs::create_symlink("..", dir / "model/sub");
  const auto opening = [&](const char* path) {
    return error_of([&] { source.open(static_cast<size_t>(source.find(path))); });
  };
  EXPECT_NE(opening("a"), "no error");
  EXPECT_NE(opening("b").find("has 1 bytes, 6 when it was listed"), std::string::npos);
  EXPECT_NE(opening("sub/c"), "no error");
}

TEST(SourceDirectory, NamesAMissingDirectory) {
  EXPECT_NE(error_of([] { SourceDirectory("/nowhere/at/all"); }).find("/nowhere/at/all"), std::string::npos);
}

TEST(PlainPath, AdmitsNothingThatLeavesTheDirectory) {
  for (const char* good : {"a", "model-00001-of-00002.safetensors", "sharded/x.y"})
    EXPECT_TRUE(is_plain_path(good)) << good;
  for (const char* bad : {"", ".", "..", "/a", "a/", "../a", "a/../b", "a/b/c", ".a", "a/.b", "a b", "a\nb", "ä"}) {
    EXPECT_FALSE(is_plain_path(bad)) << bad;
  }
}

}  // namespace
}  // namespace chassis
