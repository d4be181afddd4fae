// The id of an op in a program, with its row of the op table or the collective that it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace chassis {

struct OpSpec;

// Collectives that the layout pass inserts, and the local steps of a ring. collective_ops.hpp describes each.
enum class CommOp : uint8_t {
  kNone,
  kCopy,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kSplit,
  kLogSumExp,
  kSlice,
  kTake,
  kShift,
  kShiftBack,
  kChunk,
  kPut,
  kSum,
};

class OpId {
 public:
  OpId() = default;
  // "linear", or "domain/name" for a plugin's own op. Any text is accepted; infer_outputs() refuses unknown ops.
  explicit OpId(std::string text);
  explicit OpId(CommOp op);

  const std::string& text() const { return text_; }
  // The row of the op table. Plugins' own ops share one row, and so do collectives and unknown ids.
  const OpSpec& spec() const { return *spec_; }
  CommOp comm() const { return comm_; }
  bool is_collective() const { return comm_ != CommOp::kNone; }
  bool is_own() const { return text_.find('/') != std::string::npos; }
  bool operator==(const OpId& other) const { return text_ == other.text_; }

 private:
  std::string text_;
  const OpSpec* spec_ = &unknown();
  CommOp comm_ = CommOp::kNone;

  static const OpSpec& unknown();
};

}  // namespace chassis
