// The base of checkpoint formats: a format says which bytes are where; the host reads and writes them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "chassis/format_source.hpp"
#include "chassis/kind/format.h"
#include "chassis/member.hpp"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

class LayoutSink {
 public:
  LayoutSink(const Host& host, const chassis_layout_sink_t& raw) : host_(host), raw_(raw) {}

  // A file of num_bytes bytes in total that begins with header, written by rank. Returns its index.
  uint32_t file(std::string_view path, std::string_view header, uint64_t num_bytes, uint32_t rank = 0) {
    host_.check(raw_.file(&raw_, str(path), str(header), num_bytes, rank));
    return num_files_++;
  }
  // Tensor `tensor` of the request begins at byte `offset` of `file`. Exactly once for each.
  void place(uint32_t tensor, uint32_t file, uint64_t offset) { host_.check(raw_.place(&raw_, tensor, file, offset)); }
  // A small file that rank 0 writes whole, such as an index.
  void text_file(std::string_view path, std::string_view bytes) {
    host_.check(raw_.text_file(&raw_, str(path), str(bytes)));
  }

 private:
  const Host& host_;
  const chassis_layout_sink_t& raw_;
  uint32_t num_files_ = 0;
};

// Completes one file, once the checksums of its tensors are known.
class FinishSink {
 public:
  FinishSink(const Host& host, const chassis_finish_sink_t& raw) : host_(host), raw_(raw) {}

  // Sets bytes from offset on: after the header, outside tensors, each byte at most once. Unfilled bytes are zero.
  void fill(uint64_t offset, std::string_view bytes) { host_.check(raw_.fill(&raw_, offset, str(bytes))); }
  // The checksum of a range of the file as filled so far. The range must not cut a tensor.
  uint32_t checksum(uint64_t offset, uint64_t num_bytes) const {
    uint32_t out = 0;
    host_.check(raw_.checksum(&raw_, offset, num_bytes, &out));
    return out;
  }

 private:
  const Host& host_;
  const chassis_finish_sink_t& raw_;
};

// A read-only directory.
class Directory {
 public:
  struct Entry {
    std::string_view path;  // relative; lives as long as the directory
    uint64_t num_bytes;
  };

  Directory(const Host& host, const chassis_directory_t& raw) : host_(host), raw_(raw) {}

  uint32_t num_files() const noexcept { return raw_.num_files; }
  // Sorted by path.
  Entry entry(uint32_t i) const {
    chassis_str_t path{};
    uint64_t num_bytes = 0;
    host_.check(raw_.entry(&raw_, i, &path, &num_bytes));
    return {text_of(path), num_bytes};
  }
  // Reads exactly out.size() bytes from offset on; throws DATA_LOSS if they are not there.
  void read(uint32_t i, uint64_t offset, std::span<std::byte> out) const {
    host_.check(raw_.read(&raw_, i, offset, out.size(), out.data()));
  }
  std::string read_text(uint32_t i, uint64_t offset, uint64_t num_bytes) const {
    std::string text(num_bytes, '\0');
    host_.check(raw_.read(&raw_, i, offset, num_bytes, text.data()));
    return text;
  }

 private:
  const Host& host_;
  const chassis_directory_t& raw_;
};

class ScanSink {
 public:
  ScanSink(const Host& host, const chassis_scan_sink_t& raw) : host_(host), raw_(raw) {}

  // A box that begins at byte `offset` of file `file` of the directory.
  void tensor(const chassis_disk_tensor_t& tensor, uint32_t file, uint64_t offset) {
    host_.check(raw_.tensor(&raw_, &tensor, file, offset));
  }
  // A whole tensor.
  void tensor(std::string_view name, uint32_t dtype, std::span<const int64_t> global_shape, uint64_t num_bytes,
              uint32_t file, uint64_t offset) {
    static constexpr int64_t kOrigin[64] = {};
    if (global_shape.size() > 64)
      throw Failure(CHASSIS_DATA_LOSS, "tensor ", name, " has ", global_shape.size(), " dims");
    const chassis_disk_tensor_t whole = {sizeof(chassis_disk_tensor_t),
                                         dtype,
                                         str(name),
                                         global_shape.data(),
                                         kOrigin,
                                         global_shape.data(),
                                         static_cast<uint32_t>(global_shape.size()),
                                         0,
                                         num_bytes};
    tensor(whole, file, offset);
  }
  void metadata(std::string_view key, std::string_view value) {
    host_.check(raw_.metadata(&raw_, str(key), str(value)));
  }

 private:
  const Host& host_;
  const chassis_scan_sink_t& raw_;
};

// All [io].
class Format : public Member {
 public:
  static constexpr std::string_view kKind = "format";
  // True if files hold whole tensors: requests have only those, and ranks write their parts in place.
  static constexpr bool kWholeTensors = false;
  // The checksum that finish() uses.
  static constexpr uint32_t kChecksum = CHASSIS_CHECKSUM_CRC32C;
  // True if scan() parses more than headers: the host runs it in a separate process.
  static constexpr bool kIsolated = false;
  using Member::Member;

  // Overridden unless the format can only be read. Pure: computes the place of everything and the bytes of headers.
  virtual void layout(const chassis_save_request_t& /*request*/, LayoutSink& /*out*/) {}
  // Lists every tensor, trusting no header. NOT_FOUND if the directory is not of this format.
  virtual void scan(const Directory& directory, ScanSink& out) = 0;
  // Overridden only if files contain more than headers and tensors: fills the gaps that the layout of this request left
  // between the tensors of a file and after them.
  virtual void finish(const chassis_save_request_t& /*request*/, uint32_t /*file*/, FinishSink& /*out*/) {}

  // Implements scan() with code that does not depend on the host: its tensors go to `out`, its warnings are counted,
  // NotThisFormat becomes NOT_FOUND and any other FormatDefect DATA_LOSS.
  void scan_source(const std::function<void(const FileSource&, const FoundSink&)>& scan, const Directory& directory,
                   ScanSink& out) const {
    FileSource source;
    for (uint32_t i = 0; i < directory.num_files(); ++i) {
      const Directory::Entry entry = directory.entry(i);
      source.files.push_back({std::string(entry.path), entry.num_bytes});
    }
    source.read = [&directory](uint32_t file, uint64_t offset, uint64_t num_bytes, void* bytes) {
      directory.read(file, offset, {static_cast<std::byte*>(bytes), num_bytes});
    };
    FoundSink sink;
    sink.tensor = [&out](const FoundTensor& t) {
      const chassis_disk_tensor_t raw = {sizeof raw,
                                         t.dtype,
                                         str(t.name),
                                         t.global_shape.data(),
                                         t.box_offset.data(),
                                         t.box_shape.data(),
                                         static_cast<uint32_t>(t.box_shape.size()),
                                         t.rank,
                                         t.num_bytes};
      out.tensor(raw, t.file, t.offset);
    };
    sink.metadata = [&out](std::string_view key, std::string_view value) { out.metadata(key, value); };
    sink.warning = [this](std::string_view key, std::string_view text) { host().count(key, text); };
    try {
      scan(source, sink);
    } catch (const NotThisFormat& absent) {
      throw Failure(CHASSIS_NOT_FOUND, absent.what());
    } catch (const FormatDefect& defect) {
      throw Failure(CHASSIS_DATA_LOSS, defect.what());
    }
  }

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static constexpr chassis_format_t kTable = {sizeof(chassis_format_t),
                                                T::kWholeTensors ? 1u : 0u,
                                                kOverridden<&Format::layout, &T::layout> ? &layout_entry : nullptr,
                                                &scan_entry,
                                                kOverridden<&Format::finish, &T::finish> ? &finish_entry : nullptr,
                                                T::kChecksum,
                                                T::kIsolated ? 1u : 0u};
    return id == CHASSIS_FORMAT_ID ? &kTable : nullptr;
  }

 private:
  static chassis_status_t* layout_entry(chassis_instance* self, const chassis_save_request_t* request,
                                        const chassis_layout_sink_t* out) noexcept {
    Format& format = member_of<Format>(self);
    return guard(format.host().table(), [&] {
      LayoutSink sink(format.host(), *out);
      format.layout(read_sized(request), sink);
    });
  }
  static chassis_status_t* scan_entry(chassis_instance* self, const chassis_directory_t* directory,
                                      const chassis_scan_sink_t* out) noexcept {
    Format& format = member_of<Format>(self);
    return guard(format.host().table(), [&] {
      ScanSink sink(format.host(), *out);
      format.scan(Directory(format.host(), *directory), sink);
    });
  }
  static chassis_status_t* finish_entry(chassis_instance* self, const chassis_save_request_t* request, uint32_t file,
                                        const chassis_finish_sink_t* out) noexcept {
    Format& format = member_of<Format>(self);
    return guard(format.host().table(), [&] {
      FinishSink sink(format.host(), *out);
      format.finish(read_sized(request), file, sink);
    });
  }
};

CHASSIS_SDK_END
