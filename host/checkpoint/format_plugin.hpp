// A checkpoint format as the host uses it: a plugin's table with its answers checked. It sees names, shapes and header
// bytes; planning and all reading and writing of tensors are the host's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "chassis/kind/format.h"
#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/checkpoint/file_content.hpp"
#include "host/checkpoint/source_directory.hpp"
#include "host/plugin/instance.hpp"
#include "host/state/box.hpp"
#include "host/state/dtype.hpp"

namespace chassis {

// Headers above this are legal, but other readers refuse them.
inline constexpr uint64_t kMaxHeaderBytes = 25'000'000;

// A box of a tensor as it lies on disk: contiguous, row-major.
struct DiskBox {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape global_shape;
  Box box;
  int rank = 0;  // who writes it

  uint64_t num_bytes() const { return static_cast<uint64_t>(numel(box) * size_bytes(dtype)); }
};

struct DiskPlace {
  uint32_t file = 0;
  uint64_t offset = 0;
};

// Every byte of a checkpoint's files but the tensors' own.
struct FormatLayout {
  struct NewFile {
    std::string path;
    std::string header;
    uint64_t num_bytes = 0;
    int rank = 0;
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

  // What a scan says of a box, checked: throws a storage error unless it lies inside of its tensor and its file.
  void add(const chassis_disk_tensor_t& tensor, const DiskPlace& place, const SourceDirectory& directory);
};

using MetadataPairs = std::vector<std::pair<std::string, std::string>>;

class NotOfFormat : public Error {
 public:
  explicit NotOfFormat(std::string message) : Error(ExitCode::kStorage, std::move(message)) {}
};

class FormatPlugin {
 public:
  // An active instance of a member of kind "format"; must outlive it.
  explicit FormatPlugin(const Instance& instance);
  FormatPlugin(std::string name, const chassis_format_t& table, chassis_instance_t* self);

  const std::string& name() const { return name_; }
  // Files hold whole tensors: layout() is not to be asked about parts of them.
  bool whole_tensors() const { return table_.whole_tensors != 0; }
  // No layout(): nothing is saved in it.
  bool only_read() const { return table_.layout == nullptr; }
  // No scan(): fit for exports, but nothing comes back.
  bool only_written() const { return table_.scan == nullptr; }
  // Its scan() belongs into a process of its own (host/checkpoint/isolated_scan.hpp).
  bool isolated() const { return table_.isolated != 0; }
  // The checksum that finish() asks for.
  Crc checksum() const { return static_cast<Crc>(table_.checksum); }

  // Throws unless every box has one place, boxes do not overlap, paths are plain and headers reasonable.
  FormatLayout layout(std::span<const DiskBox> boxes, const MetadataPairs& metadata, int num_ranks,
                      uint64_t max_file_bytes) const;
  // Throws a storage error unless everything that is found lies inside its file; NotOfFormat if nothing is there for
  // it.
  FormatScan scan(SourceDirectory& directory) const;
  // The same through another table of the directory, and also if the format is to be isolated: for those who see to
  // that.
  FormatScan scan(SourceDirectory& directory, const chassis_directory_t& source) const;
  // Fills what the layout of the same request left around the tensors of a file.
  void finish(std::span<const DiskBox> boxes, const MetadataPairs& metadata, int num_ranks, uint64_t max_file_bytes,
              uint32_t file, FileContent& content) const;

 private:
  void check(const FormatLayout& layout, std::span<const DiskBox> boxes) const;

  std::string name_;
  std::string who_;
  const chassis_format_t& table_;
  chassis_instance_t* self_;
};

}  // namespace chassis
