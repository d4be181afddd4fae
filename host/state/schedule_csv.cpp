// Parser and writer.
#include "host/state/schedule_csv.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/state/schedule_order.hpp"
#include "host/state/schedule_proof.hpp"

namespace chassis {
namespace {

using Kind = Work::Kind;

struct Cell {
  Kind kind = Kind::kForward;
  int stage = 0;
  int microbatch = 0;
  int rank = 0;
  int column = 0;
};

class CsvParser {
 public:
  CsvParser(std::string_view text, const std::string& file) : file_(file) {
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
      fail(1, 1, "the file is text in UTF-16; save it in UTF-8");
    for (int line = 1; !text.empty(); ++line) {
      const size_t end = std::min(text.find('\n'), text.size());
      if (text.substr(0, end).find_first_not_of(" \t\r") != text.npos) parse_line(text.substr(0, end), line);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (rows_.empty()) fail(1, 0, "the file has no line with cells; each is a rank");
  }

  // Called before the proof, which would blame stages and entries that only the missing lines have.
  void expect_ranks(int wanted) const {
    const auto found = static_cast<int>(rows_.size());
    if (wanted == 0 || found == wanted) return;
    std::string message = "the file has lists for " + std::to_string(found) + (found == 1 ? " rank, " : " ranks, ") +
                          mesh_key(std::string(kStageAxis)) + " is " + std::to_string(wanted) + ": ";
    if (found > wanted)
      fail(lines_[static_cast<size_t>(wanted)], 0, message + "there is no rank " + std::to_string(wanted));
    message += wanted - found == 1 ? "the line of one rank is missing"
                                   : "the lines of " + std::to_string(wanted - found) + " ranks are missing";
    const std::vector<int> missing = missing_stages();
    for (size_t i = 0; i < missing.size(); ++i)
      message += (i == 0 ? "; no line has stage " : ", ") + std::to_string(missing[i]);
    fail(lines_.back(), 0, message);
  }

  Schedule schedule() const {
    Schedule out;
    out.stages = stages();
    out.ranks.resize(rows_.size());
    for (size_t rank = 0; rank < rows_.size(); ++rank)
      for (const Cell& cell : rows_[rank]) {
        out.ranks[rank].push_back({cell.kind, out.stages.chunk(cell.stage), cell.microbatch});
        out.num_microbatches = std::max(out.num_microbatches, cell.microbatch + 1);
      }
    prove(out);
    return out;
  }

 private:
  [[noreturn]] void fail(int line, int column, std::string message) const {
    throw Error(ExitCode::kConfig, {file_, line, column}, std::move(message));
  }
  [[noreturn]] void fail(const Cell& cell, std::string message) const {
    fail(line_of(cell), cell.column, std::move(message));
  }
  int line_of(const Cell& cell) const { return lines_[static_cast<size_t>(cell.rank)]; }

  // The first few stages below the largest one that no line names.
  std::vector<int> missing_stages() const {
    constexpr size_t kShown = 4;
    std::set<int> named;
    for (const std::vector<Cell>& row : rows_)
      for (const Cell& cell : row) named.insert(cell.stage);
    std::vector<int> out;
    for (int stage = 0; stage < last_stage_.stage && out.size() < kShown; ++stage)
      if (!named.contains(stage)) out.push_back(stage);
    return out;
  }

  void parse_line(std::string_view line, int number) {
    rows_.emplace_back();
    lines_.push_back(number);
    for (size_t begin = 0; begin <= line.size();) {
      const size_t end = std::min(line.find(',', begin), line.size());
      const size_t first = std::min(line.find_first_not_of(" \t\r", begin), end);
      const size_t last = line.find_last_not_of(" \t\r", end - (end > first ? 1 : 0));
      if (first < end) parse_cell(line.substr(first, last + 1 - first), number, static_cast<int>(first) + 1);
      begin = end + 1;
    }
    if (rows_.back().empty())
      fail(number, 0,
           "rank " + std::to_string(rows_.size() - 1) + " computes nothing; each line with commas is a rank");
  }

  void parse_cell(std::string_view text, int line, int column) {
    Cell cell;
    cell.rank = static_cast<int>(rows_.size()) - 1;
    cell.column = column;
    const char* const end = text.data() + text.size();
    const auto [letter, bad_stage] = std::from_chars(text.data(), end, cell.stage);
    const size_t kind = letter == end ? kKindLetters.npos : kKindLetters.find(*letter);
    const auto [rest, bad_microbatch] =
        std::from_chars(kind == kKindLetters.npos ? end : letter + 1, end, cell.microbatch);
    if (bad_stage != std::errc() || bad_microbatch != std::errc() || rest != end || cell.stage < 0 ||
        cell.microbatch < 0)
      fail(line, column,
           "cell '" + std::string(text) + "' is not a stage, one of F, B, I and W, and a micro-batch, such as 0F0");
    cell.kind = static_cast<Kind>(kind);
    rows_.back().push_back(cell);
    ++num_cells_;
    if (cell.stage > last_stage_.stage || num_cells_ == 1) last_stage_ = cell;
    if (cell.microbatch > last_microbatch_.microbatch || num_cells_ == 1) last_microbatch_ = cell;
  }

  // Also limits the memory that the proof allocates because of a mistyped number.
  void check_size() const {
    const int64_t num_stages = int64_t{last_stage_.stage} + 1;
    const int64_t num_microbatches = int64_t{last_microbatch_.microbatch} + 1;
    if (num_stages * num_microbatches <= num_cells_) return;
    const bool blames_stage = num_stages > num_microbatches;
    const Cell& cell = blames_stage ? last_stage_ : last_microbatch_;
    fail(cell,
         (blames_stage ? "stage " + std::to_string(cell.stage) : "micro-batch " + std::to_string(cell.microbatch)) +
             " is too large: " + std::to_string(num_stages) + " stages with " + std::to_string(num_microbatches) +
             " micro-batches need more than the " + std::to_string(num_cells_) + " cells");
  }

  StageMap stages() const {
    check_size();
    std::vector<const Cell*> first(static_cast<size_t>(last_stage_.stage) + 1);
    for (const std::vector<Cell>& row : rows_)
      for (const Cell& cell : row) {
        const Cell*& known = first[static_cast<size_t>(cell.stage)];
        if (known == nullptr) known = &cell;
        if (known->rank != cell.rank)
          fail(cell, "stage " + std::to_string(cell.stage) + " lies on rank " + std::to_string(known->rank) +
                         " (line " + std::to_string(line_of(*known)) + ", column " + std::to_string(known->column) +
                         "), not also on rank " + std::to_string(cell.rank));
      }
    std::vector<int> ranks;
    for (size_t stage = 0; stage < first.size(); ++stage) {
      if (first[stage] == nullptr)
        fail(last_stage_, "stage " + std::to_string(last_stage_.stage) + " is named, but stage " +
                              std::to_string(stage) + " has no cell");
      ranks.push_back(first[stage]->rank);
    }
    return StageMap(std::move(ranks));
  }

  void prove(const Schedule& schedule) const {
    const std::vector<ScheduleFault> faults = schedule_faults(schedule);
    if (faults.empty()) return;
    const ScheduleFault& fault = faults.front();
    std::string message = fault.message;
    if (faults.size() > 1) message += " (and " + std::to_string(faults.size() - 1) + " more faults)";
    const int column =
        fault.entry < 0 ? 0 : rows_[static_cast<size_t>(fault.rank)][static_cast<size_t>(fault.entry)].column;
    fail(lines_[static_cast<size_t>(std::max(fault.rank, 0))], column, std::move(message));
  }

  const std::string& file_;
  std::vector<std::vector<Cell>> rows_;  // by rank
  std::vector<int> lines_;               // line in the file, by rank
  int64_t num_cells_ = 0;
  Cell last_stage_, last_microbatch_;  // with the largest stage, and the largest micro-batch
};

}  // namespace

Schedule parse_schedule_csv(std::string_view text, const std::string& file, int num_ranks) {
  const CsvParser parser(text, file);
  parser.expect_ranks(num_ranks);
  return parser.schedule();
}

std::string schedule_csv(const Schedule& schedule) {
  const ScheduleOrder order(schedule);
  std::vector<std::vector<int>> slots;  // by rank and entry: its column
  for (const std::vector<Work>& list : schedule.ranks) slots.emplace_back(list.size());
  const auto slot = [&](WorkPlace at) -> int& {
    return slots[static_cast<size_t>(at.rank)][static_cast<size_t>(at.entry)];
  };
  order.run([&](WorkPlace at) {
    const auto [own, neighbour] = order.needs(at);
    int& column = slot(at);
    for (const WorkPlace before : {WorkPlace{at.entry > 0 ? at.rank : -1, at.entry - 1}, own, neighbour})
      if (before.exists()) column = std::max(column, slot(before) + 1);
  });

  std::string out;
  for (int rank = 0; rank < schedule.stages.num_ranks(); ++rank) {
    int column = 0;
    for (int entry = 0; entry < static_cast<int>(schedule.ranks[static_cast<size_t>(rank)].size()); ++entry) {
      const WorkPlace at{rank, entry};
      for (; column < slot(at); ++column) out += ',';
      out += std::to_string(order.stage(at)) + kKindLetters[static_cast<size_t>(order.work(at).kind)] +
             std::to_string(order.work(at).microbatch);
    }
    out += '\n';
  }
  return out;
}

}  // namespace chassis
