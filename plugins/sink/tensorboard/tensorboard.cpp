// Event files that TensorBoard reads, in tensorboard/ of the run directory, one for each start of the run. A file is a
// sequence of records, each its length (u64), the masked CRC32C of the length, the data, and the masked CRC32C of the
// data (tensorflow/core/lib/io/record_writer.h); the data are messages Event of tensorflow/core/util/event.proto.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "chassis/plugin.hpp"
#include "chassis/sink.hpp"

namespace {

using namespace chassis;

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82f63b78u : 0);
  }
  return table;
}

uint32_t masked_crc(std::string_view data) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = ~0u;
  for (const char c : data) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// Fields of a protocol buffer.
class Message {
 public:
  void varint(int field, uint64_t value) { key(field, 0), number(value); }
  void fixed64(int field, double value) { key(field, 1), bytes(value); }
  void fixed32(int field, float value) { key(field, 5), bytes(value); }
  void text(int field, std::string_view value) { key(field, 2), number(value.size()), out_ += value; }
  void message(int field, const Message& value) { text(field, value.out_); }
  const std::string& data() const { return out_; }

 private:
  void key(int field, int type) { number(static_cast<uint64_t>(field << 3 | type)); }
  void number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
  }
  template <typename T>
  void bytes(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);  // little-endian, as the machine
  }
  std::string out_;
};

class TensorBoard final : public Sink {
 public:
  static constexpr std::string_view kDoc = "event files for TensorBoard, in tensorboard/ of the run directory";

  using Sink::Sink;
  ~TensorBoard() override {
    if (file_ != nullptr) std::fclose(file_);
  }

  void start(const chassis_sink_start_t& start) override {
    const std::string folder = std::string(text_of(start.output_dir)) + "/tensorboard";
    std::filesystem::create_directories(folder);
    char machine[256] = "host";
    gethostname(machine, sizeof machine - 1);
    const std::string name = folder + "/events.out.tfevents." + std::to_string(static_cast<int64_t>(start.time)) + "." +
                             machine + "." + std::to_string(getpid());
    // A process may start twice within a second.
    for (int others = 0; file_ == nullptr && (others == 0 || errno == EEXIST); ++others) {
      path_ = name + "." + std::to_string(others);
      file_ = std::fopen(path_.c_str(), "wbx");
    }
    if (file_ == nullptr) fail("creating");
    Message version = event(start.time, 0);
    version.text(3, "brain.Event:2");
    write(version);
    // TensorBoard drops the records of earlier files from this step on.
    Message session, status;
    status.varint(1, 1);  // START
    session = event(start.time, start.first_step + 1);
    session.message(7, status);
    write(session);
    flush();
  }

  void scalars(int64_t step, double time, std::span<const chassis_scalar_t> scalars) override {
    Message summary;
    for (const chassis_scalar_t& scalar : scalars) {
      Message value;
      value.text(1, text_of(scalar.name));
      value.fixed32(2, static_cast<float>(scalar.value));
      summary.message(1, value);
    }
    Message all = event(time, step);
    all.message(5, summary);
    write(all);
  }

  // As tf.summary.text: a tensor of strings, for the plugin "text".
  void text(const chassis_sink_text_t& text) override {
    Message dim, shape, tensor, plugin, metadata, value, summary;
    dim.varint(1, 1);
    shape.message(2, dim);
    tensor.varint(1, 7);  // DT_STRING
    tensor.message(2, shape);
    tensor.text(8, text_of(text.text));
    plugin.text(1, "text");
    metadata.message(1, plugin);
    value.text(1, text_of(text.name));
    value.message(9, metadata);
    value.message(8, tensor);
    summary.message(1, value);
    Message all = event(text.time, text.step);
    all.message(5, summary);
    write(all);
  }

  void flush() override {
    if (file_ != nullptr && std::fflush(file_) != 0) fail("writing");
  }
  void finish(const chassis_sink_finish_t&) override { flush(); }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Failure(CHASSIS_UNAVAILABLE, what, " '", path_, "': ", std::strerror(errno));
  }
  static Message event(double time, int64_t step) {
    Message out;
    out.fixed64(1, time);
    out.varint(2, static_cast<uint64_t>(step));
    return out;
  }
  void write(const Message& message) {
    if (file_ == nullptr) throw Failure(CHASSIS_UNAVAILABLE, "there is no event file, since the start failed");
    const std::string& data = message.data();
    const uint64_t length = data.size();
    std::string record(reinterpret_cast<const char*>(&length), sizeof length);
    const auto append = [&](uint32_t crc) { record.append(reinterpret_cast<const char*>(&crc), sizeof crc); };
    append(masked_crc(record));
    record += data;
    append(masked_crc(data));
    if (std::fwrite(record.data(), 1, record.size(), file_) != record.size()) fail("writing");
  }

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "license=Apache-2.0\n",
    TensorBoard)
