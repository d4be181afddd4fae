// A checkpoint format as the host uses it: a plugin's table, with every answer checked. The plugin sees names, shapes
// and header bytes; the host plans, and reads and writes all tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "chassis/kind/format.h"
#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/checkpoint/disk_box.hpp"
#include "host/checkpoint/file_content.hpp"
#include "host/checkpoint/source_directory.hpp"
#include "host/plugin/instance.hpp"
#include "host/state/box.hpp"
#include "host/state/dtype.hpp"

namespace chassis {

// Every byte of a checkpoint's files, except the tensors.
struct FormatLayout {
  struct NewFile {
    std::string path;
    std::string header;
    uint64_t num_bytes = 0;
    int rank = 0;
    bool operator==(const NewFile&) const = default;
  };
  std::vector<NewFile> files;
  std::vector<DiskPlace> places;  // one for every box
  std::vector<std::pair<std::string, std::string>> text_files;
};

struct FormatScan {
  struct Found {
    DiskBox box;
    DiskPlace place;
  };
  std::vector<Found> boxes;
  std::vector<std::pair<std::string, std::string>> metadata;

  // Checks and adds a box that a scan found. Throws a storage error unless it lies inside its tensor and its file.
  void add(const chassis_disk_tensor_t& tensor, const DiskPlace& place, const SourceDirectory& directory);
};

using MetadataPairs = std::vector<std::pair<std::string, std::string>>;

class OtherFormat : public Error {
 public:
  explicit OtherFormat(std::string message) : Error(ExitCode::kStorage, std::move(message)) {}
};

class FormatPlugin {
 public:
  // `instance`: an active member of kind "format"; must outlive this.
  explicit FormatPlugin(const Instance& instance);
  FormatPlugin(std::string name, const chassis_format_t& table, chassis_instance_t* self);

  const std::string& name() const { return name_; }
  // Files hold whole tensors: layout() must not be called with parts of tensors.
  bool whole_tensors() const { return table_.whole_tensors != 0; }
  // The format has no layout(): nothing can be saved in it.
  bool is_read_only() const { return table_.layout == nullptr; }
  // The format has no scan(): exports can be written, but not read.
  bool is_write_only() const { return table_.scan == nullptr; }
  // Its scan() must run in a separate process (host/checkpoint/isolated_scan.hpp).
  bool isolated() const { return table_.isolated != 0; }
  // The checksum that finish() asks for.
  Crc checksum() const { return static_cast<Crc>(table_.checksum); }

  // Throws unless every box has one place, boxes do not overlap, paths are plain, and headers are below
  // kMaxHeaderBytes.
  FormatLayout layout(std::span<const DiskBox> boxes, const MetadataPairs& metadata, int num_ranks,
                      uint64_t max_file_bytes) const;
  // Whether each rank's files depend on its own boxes alone, so that the layout() of these boxes is that rank's part of
  // the layout() of all boxes. Determined by a small layout for two ranks.
  bool divides_by_rank(const MetadataPairs& metadata) const;
  // Throws a storage error unless every tensor found lies inside its file, and OtherFormat if the directory is not of
  // this format.
  FormatScan scan(SourceDirectory& directory) const;
  // The same, but reads through `source`. Accepts an isolated format: the caller is its separate process.
  FormatScan scan(SourceDirectory& directory, const chassis_directory_t& source) const;
  // Fills the bytes of a file that the layout of the same request left between and after the tensors.
  void finish(std::span<const DiskBox> boxes, const MetadataPairs& metadata, int num_ranks, uint64_t max_file_bytes,
              uint32_t file, FileContent& content) const;

 private:
  void check(const FormatLayout& layout, std::span<const DiskBox> boxes) const;

  std::string name_;
  std::string label_;
  const chassis_format_t& table_;
  chassis_instance_t* self_;
};

}  // namespace chassis
