// Event files, parsed by hand from the format's description; tests/interop/sinks.py reads them with TensorBoard.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/support/sink_run.hpp"

namespace {

// Bit by bit, as the polynomial says.
uint32_t masked_crc32c(const std::string& data) {
  uint32_t crc = ~0u;
  for (const char c : data) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

template <typename T>
T take(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<uint8_t>(bytes);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

// The fields of a message: numbers as they are, texts and messages as bytes.
struct Field {
  int number = 0;
  uint64_t bits = 0;
  std::string bytes;
};
std::vector<Field> fields(std::string_view message) {
  std::vector<Field> out;
  while (!message.empty()) {
    const uint64_t key = take_varint(message);
    Field field;
    field.number = static_cast<int>(key >> 3);
    if (const int type = key & 7; type == 0) {
      field.bits = take_varint(message);
    } else if (type == 1) {
      field.bits = take<uint64_t>(message);
    } else if (type == 5) {
      field.bits = take<uint32_t>(message);
    } else {
      const uint64_t size = take_varint(message);
      field.bytes = message.substr(0, size);
      message.remove_prefix(size);
    }
    out.push_back(field);
  }
  return out;
}
Field field(std::string_view message, int number) {
  for (Field& found : fields(message))
    if (found.number == number) return found;
  throw std::runtime_error("no field " + std::to_string(number));
}

class TensorBoard : public testing::Test {
 protected:
  TensorBoard() { std::filesystem::create_directories(folder_); }
  ~TensorBoard() override { std::filesystem::remove_all(folder_); }

  // The events of the only file, whose checksums must be right.
  std::vector<std::string> events() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/tensorboard")) files.push_back(entry);
    EXPECT_EQ(files.size(), 1u);
    EXPECT_TRUE(files[0].filename().string().starts_with("events.out.tfevents."));
    std::ostringstream out;
    out << std::ifstream(files[0], std::ios::binary).rdbuf();
    const std::string content = out.str();
    std::vector<std::string> records;
    for (std::string_view rest = content; !rest.empty();) {
      const std::string length_bytes(rest.substr(0, 8));
      const auto length = take<uint64_t>(rest);
      EXPECT_EQ(take<uint32_t>(rest), masked_crc32c(length_bytes));
      records.emplace_back(rest.substr(0, length));
      rest.remove_prefix(length);
      EXPECT_EQ(take<uint32_t>(rest), masked_crc32c(records.back()));
    }
    return records;
  }

  const std::string folder_ = testing::TempDir() + "chassis-tensorboard-" + std::to_string(getpid());
  fake::Host host_;
  fake::SinkRun run_{host_, CHASSIS_TEST_PLUGIN_DIR "/tensorboard.so", "tensorboard"};
};

TEST_F(TensorBoard, WritesScalarsUnderTheirNames) {
  run_.start(folder_, 299);
  run_.scalars(300, {{"loss", 0.25}, {"comm/tp/calls", 4096}});
  run_.finish(300);
  const std::vector<std::string> all = events();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(field(all[0], 3).bytes, "brain.Event:2");
  EXPECT_EQ(field(field(all[1], 7).bytes, 1).bits, 1u) << "steps from here on replace those of earlier files";
  EXPECT_EQ(field(all[1], 2).bits, 300u);
  EXPECT_EQ(field(all[2], 2).bits, 300u);
  std::vector<std::pair<std::string, float>> values;
  for (const Field& value : fields(field(all[2], 5).bytes)) {
    float number;
    const auto bits = static_cast<uint32_t>(field(value.bytes, 2).bits);
    std::memcpy(&number, &bits, sizeof number);
    values.emplace_back(field(value.bytes, 1).bytes, number);
  }
  EXPECT_EQ(values, (std::vector<std::pair<std::string, float>>{{"loss", 0.25f}, {"comm/tp/calls", 4096.0f}}));
}

TEST_F(TensorBoard, StartsASecondFileWithinASecond) {
  for (int i = 0; i < 2; ++i) {
    fake::SinkRun run(host_, CHASSIS_TEST_PLUGIN_DIR "/tensorboard.so", "tensorboard");
    run.start(folder_);
  }
  const std::filesystem::directory_iterator files(folder_ + "/tensorboard");
  EXPECT_EQ(std::distance(begin(files), end(files)), 2);
}

TEST_F(TensorBoard, WritesTextsForItsPluginText) {
  run_.start(folder_);
  run_.text(7, "sample/1", "once upon\na time");
  run_.flush();
  const std::string value = field(field(events().at(2), 5).bytes, 1).bytes;
  EXPECT_EQ(field(value, 1).bytes, "sample/1");
  EXPECT_EQ(field(field(field(value, 9).bytes, 1).bytes, 1).bytes, "text");
  EXPECT_EQ(field(field(value, 8).bytes, 1).bits, 7u) << "strings";
  EXPECT_EQ(field(field(value, 8).bytes, 8).bytes, "once upon\na time");
}

}  // namespace
