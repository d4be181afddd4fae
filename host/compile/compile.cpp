// The order of the passes, and the programs resolved for each purpose.
#include "host/compile/compile.hpp"

#include <iterator>
#include <set>
#include <utility>

#include "host/base/log.hpp"
#include "host/compile/apply_layout.hpp"
#include "host/compile/liveness.hpp"
#include "host/compile/providers.hpp"
#include "host/compile/selective.hpp"
#include "host/graph/record.hpp"
#include "host/graph/rewrite.hpp"

namespace chassis {
namespace {

using Reports = std::vector<PassReport>;

void append(Reports& reports, Reports more) {
  reports.insert(reports.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

Program record(const Recording& from) {
  try {
    Program program = record_program(from.record);
    if (from.check) from.check(program);
    return program;
  } catch (const Error& e) {
    if (from.where.file.empty()) throw;
    Error error(e.code(), from.where, e.message());
    if (!from.file.empty()) error.with("file", from.file);
    throw error.hint(e.hint_text());
  }
}

Reports rewrite(const std::string& kind, const std::vector<const RewritePass*>& passes, Program& program) {
  if (passes.empty()) return {{kind, "", "none is chosen"}};
  Reports reports;
  for (const RewritePass* pass : passes) {
    const size_t before = reports.size();
    pass->rewrite(program, [&](std::string subject, std::string what) {
      reports.push_back({kind, pass->name() + " on " + subject, std::move(what)});
    });
    check_rewritten(program, kind + " '" + pass->name() + "'");
    if (reports.size() == before) reports.push_back({kind, pass->name(), "finds nothing to change"});
  }
  return reports;
}

// Warns about a sum over all tokens in bf16, which has only 8 significant bits.
void warn_of_narrow_loss(const CompiledProgram& compiled) {
  if (compiled.options.compute == Dtype::f32 || compiled.program.chains.empty()) return;
  const BlockType& last = compiled.program.blocks[compiled.program.chains.back().blocks.back()];
  const auto loss = last.outputs.find("loss");
  if (loss == last.outputs.end() || last.values[loss->second].type != GraphValueType::kCompute) return;
  counted_warning("loss in " + std::string(dtype_name(compiled.options.compute)),
                  "block '" + last.name + "' outputs the loss in " + std::string(dtype_name(compiled.options.compute)) +
                      ", which rounds it; a plugin's own op declares output_dtype = CHASSIS_DTYPE_F32");
}

}  // namespace

CompiledProgram compile(const Recording& recording, CompileOptions options) {
  return compile(record(recording), std::move(options));
}

CompiledProgram compile(Program recorded, CompileOptions options) {
  CompiledProgram out;
  out.program = std::move(recorded);
  append(out.rewrites_, report_of_record(out.program));
  append(out.rewrites_, rewrite("adapter", options.passes.adapters, out.program));
  out.layout = apply_layout(out.program, options.passes.layout);
  for (const LayoutAxis& axis : out.layout.axes)
    if (const size_t count = axis.adapter_linears_without_ring; count > 0)
      counted_warning("adapter linears without a ring",
                      "overlap along '" + axis.name + "': the linears of adapters keep their gathers and scatters",
                      count);
  append(out.rewrites_, report_of_layout(out.program, out.layout));
  append(out.rewrites_, rewrite("quant", options.passes.quant, out.program));

  out.parameters = std::make_unique<ParameterTable>(out.program, out.layout,
                                                    ParameterOptions{options.resolve.compute, options.freeze});

  out.options = std::move(options.resolve);
  for (const auto* providers : {&out.options.attention, &out.options.kernels})
    for (const OpsProvider& provider : *providers) check_provider(provider);
  out.recompute_ = options.recompute;
  for (const Purpose purpose : options.purposes) out.resolved(purpose);
  warn_of_narrow_loss(out);
  return out;
}

const ResolvedProgram& CompiledProgram::resolved(Purpose purpose) {
  if (const auto known = resolved_.find(purpose); known != resolved_.end()) return known->second;
  options.purpose = purpose;
  ResolvedProgram resolved = resolve_program(program, layout, *parameters, options);
  // Counted once, because evaluation has the nodes of training. Logits are left out: their nodes lack the loss.
  if (purpose != Purpose::kLogits && !std::exchange(counted_idle_, true)) count_idle_providers(resolved, options);
  finish(resolved);
  return resolved_.emplace(purpose, std::move(resolved)).first->second;
}

void CompiledProgram::finish(ResolvedProgram& resolved) const {
  apply_recompute(program, recompute_, resolved);
  std::set<ResolvedBlock*> blocks;  // units share blocks
  for (const auto& unit : resolved.units) blocks.insert(unit.get());
  for (ResolvedBlock* block : blocks) find_liveness(program, layout, options, *block);
  find_selective_liveness(resolved, options.compute);
}

uint64_t CompiledProgram::planned_activation_bytes(Recompute recompute) {
  const ResolvedProgram& training = resolved(Purpose::kTraining);
  const std::vector<BlockRecompute> modes = recompute_of_units(program, recompute);
  uint64_t held = 0, peak = 0;
  for (size_t unit = 0; unit < training.units.size(); ++unit) {
    const ResolvedBlock& block = *training.units[unit];
    const uint64_t inside = std::max(block.kept_bytes + block.saved_bytes, block.peak_forward_bytes) +
                            block.workspace_bytes + 2 * block.input_bytes;
    peak = std::max(peak, held + inside);
    held += block.input_bytes;
    if (modes[unit] == BlockRecompute::kSelective) {
      const ResolvedBlock kept = recompute_selectively(block, options.compute);
      held += kept.kept_bytes + kept.saved_bytes;
    } else if (modes[unit] == BlockRecompute::kNone) {
      held += block.kept_bytes + block.saved_bytes;
    }
  }
  return std::max(peak, held);
}

void CompiledProgram::set_recompute(Recompute recompute, std::string reason) {
  recompute_ = recompute;
  recompute_reason_ = std::move(reason);
  for (auto& [purpose, resolved] : resolved_) finish(resolved);
}

std::vector<PassReport> CompiledProgram::reports(Purpose purpose) {
  const ResolvedProgram& program = resolved(purpose);
  Reports reports = rewrites_;
  append(reports, report_of_providers(program, options));
  append(reports, report_of_recompute(program, recompute_, recompute_reason_));
  append(reports, report_of_liveness(program));
  return reports;
}

ResolvedBlock compile_block(const Program& program, const ProgramLayout& layout, uint32_t type,
                            std::span<const uint8_t> slot_trainable, bool inputs_need_grad,
                            const ResolveOptions& options) {
  ResolvedBlock block = resolve_block(program, layout, type, slot_trainable, inputs_need_grad, options);
  find_liveness(program, layout, options, block);
  return block;
}

}  // namespace chassis
