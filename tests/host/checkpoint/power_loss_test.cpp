// The power fails at every moment of a save, and the disk keeps all, none or some of the changes that were not synced.
// A restart finds the old or the new checkpoint intact, and the new one if the save had returned.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "file_calls.hpp"
#include "steps.hpp"

namespace chassis {
namespace {

using namespace testing;
using Kind = FileCall::Kind;

// A model of a file system that tracks what is durable. A change of a file's bytes or size, or of a directory entry, is
// pending until that file or directory is synced. A crash may keep or lose each pending change separately.
class Disk : public FileCallObserver {
 public:
  struct Change {
    int node = 0;  // the file or directory that it changes
    bool of_entries = false;
    uint64_t offset = 0;  // where `bytes` are written
    std::string bytes = {};
    std::optional<uint64_t> size = {};
    std::string name = {}, removed = {};  // entries: `name` is added and refers to `target`; `removed` is removed
    int target = -1;
    int second_target = -1;       // for an exchange: `removed` then refers to it
    size_t synced_at = SIZE_MAX;  // the moment from which it is durable
  };

  explicit Disk(std::string root) : root_(std::move(root)) { nodes_[root_] = new_node(true); }

  int before(FileCall&) override { return 0; }
  void after(const FileCall& call) override {
    ++moment_;
    switch (call.kind) {
      case Kind::kCreate:
        add_entry(call.path, new_node(false));
        break;
      case Kind::kMakeDirectory:
        add_entry(call.path, new_node(true));
        break;
      case Kind::kLink: {
        const int node = new_node(false);
        links_[node] = call.to;
        add_entry(call.path, node);
        break;
      }
      case Kind::kWrite:
        changes_.push_back({.node = nodes_.at(call.path),
                            .offset = call.offset,
                            .bytes = std::string(static_cast<const char*>(call.data), call.num_bytes)});
        break;
      case Kind::kResize:
        changes_.push_back({.node = nodes_.at(call.path), .size = call.num_bytes});
        break;
      case Kind::kSync:
        sync(nodes_.at(call.path));
        break;
      case Kind::kUnlink: {
        changes_.push_back({.node = nodes_.at(parent(call.path)), .of_entries = true, .removed = name(call.path)});
        nodes_.erase(call.path);
        break;
      }
      case Kind::kRename:
        rename(call);
        break;
      case Kind::kExchange:
        exchange(call);
        break;
      default:  // kClose; calls that read are not observed
        --moment_;
        return;
    }
    made_at_.resize(changes_.size(), moment_);
  }

  size_t moment() const { return moment_; }

  // Writes the files as they are after a crash at `moment`: durable changes, and the pending ones that `keeps` selects.
  void lay_out(const std::string& path, size_t moment, const std::function<bool(const Change&)>& keeps) const {
    std::map<int, std::string> bytes;
    std::map<int, std::map<std::string, int>> entries;
    for (size_t i = 0; i < changes_.size() && made_at_[i] <= moment; ++i) {
      const Change& change = changes_[i];
      if (change.synced_at > moment && !keeps(change)) continue;
      if (!change.of_entries) {
        std::string& content = bytes[change.node];
        if (change.size) content.resize(*change.size);
        if (content.size() < change.offset + change.bytes.size() && !change.size)
          content.resize(change.offset + change.bytes.size());
        if (!change.size) content.replace(change.offset, change.bytes.size(), change.bytes);
        continue;
      }
      auto& directory = entries[change.node];
      if (!change.removed.empty()) directory.erase(change.removed);
      if (change.second_target >= 0) directory[change.removed] = change.second_target;
      if (change.target >= 0) directory[change.name] = change.target;
    }
    make(path, nodes_root(), bytes, entries);
  }

 private:
  static std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }
  static std::string name(const std::string& path) { return path.substr(path.rfind('/') + 1); }
  int nodes_root() const { return 0; }

  int new_node(bool is_directory) {
    is_directory_.push_back(is_directory);
    return static_cast<int>(is_directory_.size()) - 1;
  }
  void add_entry(const std::string& path, int node) {
    changes_.push_back({.node = nodes_.at(parent(path)), .of_entries = true, .name = name(path), .target = node});
    nodes_[path] = node;
  }
  void sync(int node) {
    for (Change& change : changes_)
      if (change.node == node) change.synced_at = std::min(change.synced_at, moment_);
  }
  void move(const std::string& from, const std::string& to) {
    std::map<std::string, int> moved;
    for (auto it = nodes_.begin(); it != nodes_.end();) {
      const bool goes = it->first == from || it->first.starts_with(from + "/");
      if (goes) moved[to + it->first.substr(from.size())] = it->second;
      it = goes ? nodes_.erase(it) : std::next(it);
    }
    for (const auto& [path, node] : moved) nodes_[path] = node;
  }
  void rename(const FileCall& call) {
    ASSERT_EQ(parent(call.path), parent(call.to));
    changes_.push_back({.node = nodes_.at(parent(call.path)),
                        .of_entries = true,
                        .name = name(call.to),
                        .removed = name(call.path),
                        .target = nodes_.at(call.path)});
    move(call.path, call.to);
  }
  void exchange(const FileCall& call) {
    ASSERT_EQ(parent(call.path), parent(call.to));
    changes_.push_back({.node = nodes_.at(parent(call.path)),
                        .of_entries = true,
                        .name = name(call.to),
                        .removed = name(call.path),
                        .target = nodes_.at(call.path),
                        .second_target = nodes_.at(call.to)});
    move(call.to, "/aside");
    move(call.path, call.to);
    move("/aside", call.path);
  }
  void make(const std::string& path, int node, const std::map<int, std::string>& bytes,
            const std::map<int, std::map<std::string, int>>& entries) const {
    if (const auto link = links_.find(node); link != links_.end()) return fs::create_symlink(link->second, path);
    if (!is_directory_[static_cast<size_t>(node)]) {
      const auto content = bytes.find(node);
      return write_text(path, content == bytes.end() ? "" : content->second);
    }
    fs::create_directories(path);
    if (const auto listed = entries.find(node); listed != entries.end())
      for (const auto& [entry, target] : listed->second) make(path + "/" + entry, target, bytes, entries);
  }

  std::string root_;
  std::map<std::string, int> nodes_;  // by path, as the program sees them
  std::vector<bool> is_directory_;
  std::map<int, std::string> links_;
  std::vector<Change> changes_;
  std::vector<size_t> made_at_;  // by change
  size_t moment_ = 0;
};

// The step from which a restart resumes; 0: none.
int64_t restart(const std::string& path) {
  const CheckpointRoot root(path);
  for (const CheckpointInfo& info : list_checkpoints(path)) expect_whole(info);
  const auto newest = newest_checkpoint(path);
  return newest ? newest->step : 0;
}

TEST(PowerLoss, LeavesTheOldCheckpointOrTheNewOne) {
  const TemporaryDirectory dir;
  const std::string path = dir / "checkpoints";
  fs::create_directory(path);
  Disk disk(path);
  std::vector<size_t> returned = {0};  // the moment at which the save of this step had returned
  {
    const ObservedFileCalls observed(path, disk);
    CheckpointRoot root(path);
    // The third save deletes the first step, the fourth replaces the third.
    for (const int64_t step : {1, 2, 3, 3}) {
      save_step(root, step, 2);
      returned.push_back(disk.moment());
    }
  }
  std::mt19937 random(11);
  int states = 0, old = 0;
  const auto crash = [&](size_t moment, const std::function<bool(const Disk::Change&)>& keeps) {
    const TemporaryDirectory after;
    disk.lay_out(after / "disk", moment, keeps);
    const int64_t found = restart(after / "disk");
    const auto done =
        static_cast<int64_t>(std::upper_bound(returned.begin() + 1, returned.end(), moment) - returned.begin()) - 1;
    EXPECT_GE(found, std::min<int64_t>(done, 3)) << "after call " << moment;
    ++states;
    old += found < 3;
  };
  for (size_t moment = 0; moment <= disk.moment(); ++moment) {
    SCOPED_TRACE(moment);
    crash(moment, [](const auto&) { return false; });
    crash(moment, [](const auto&) { return true; });
    crash(moment, [](const auto& change) { return change.of_entries; });  // names only
    crash(moment, [](const auto& change) { return !change.of_entries; });
    for (int i = 0; i < 12; ++i) {
      const auto odds = random() % 100;
      crash(moment, [&](const auto&) { return random() % 100 < odds; });
    }
  }
  EXPECT_GT(old, 100);
  std::printf("%d states after %zu calls, %d of them before the last step\n", states, disk.moment(), old);
}

}  // namespace
}  // namespace chassis
