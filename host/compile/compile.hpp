// From the recorded model to the program that the executor runs. All passes are called from here, in their order, and
// from nowhere else; tools/check-layering enforces this.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chassis/kind/model.h"
#include "host/base/error.hpp"
#include "host/compile/layout_pass.hpp"
#include "host/compile/objective_pass.hpp"
#include "host/compile/parameters.hpp"
#include "host/compile/pass_report.hpp"
#include "host/compile/recompute.hpp"
#include "host/compile/resolve.hpp"
#include "host/compile/router_pass.hpp"
#include "host/graph/program.hpp"

namespace chassis {

// A pass that a run chooses: an adapter, which adds parameters and branches, or a quant scheme, which decides how slots
// are stored and which ops read them.
class RewritePass {
 public:
  // `what` describes what the pass did to `subject`, or why it left it unchanged.
  using Report = std::function<void(std::string subject, std::string what)>;

  virtual ~RewritePass() = default;
  virtual std::string name() const = 0;
  virtual void rewrite(Program& program, const Report& report) const = 0;
};

// In order of application; all must outlive the call that receives them.
struct ProgramPasses {
  std::vector<const RewritePass*> adapters = {};
  std::vector<const LayoutStrategy*> layout = {};
  std::vector<const RewritePass*> quant = {};
};

struct Recording {
  std::function<chassis_status_t*(const chassis_builder_t*)> record;  // a model plugin's function, or a test's
  SourcePosition where = {};                                          // shown in errors about the recording
  std::string file = {};                                              // also named in those errors
  std::function<void(const Program&)> check = {};  // throws if the run cannot give the model what it needs
};

struct CompileOptions {
  std::optional<ObjectiveRequest> objective = ObjectiveRequest{};  // nullopt: the model stays as it is recorded
  RouterRequest routers = {};
  ProgramPasses passes = {};
  std::function<void(ParameterTable&)> freeze = {};  // marks the parameters that are not trained
  ResolveOptions resolve = {};                       // its purpose is ignored
  Recompute recompute = Recompute::kNone;
  std::vector<Purpose> purposes = {};  // resolved by compile(); others on first use
};

// The rewritten program, its layout and its parameters, and for each purpose the nodes with the providers that compute
// them. It is a value: nothing that it returns changes after compile(). Copies share all that they have in common, so
// they are cheap. Nodes own their kernels, so the providers must outlive all copies.
//
// compile() resolves the purposes that its options name, so that their errors come early. Any other purpose is resolved
// on first use, by the thread that asks first. Rationale: kernels of a purpose that is never used would cost time and
// memory, and a provider may refuse an op for such a purpose alone.
class CompiledProgram {
 public:
  const Program& program() const;
  const ProgramLayout& layout() const;
  // The list of parameters is fixed. Their tensors are not part of the value: all programs that were made by one
  // compile() share the table.
  ParameterTable& parameters() const;
  const ResolveOptions& options() const;  // its purpose has no meaning

  // [any] Throws a plugin error that lists every refusal if no provider claims an op; the next call then asks again.
  // The reference is valid as long as any copy of this program.
  const ResolvedProgram& resolved(Purpose purpose) const;
  const Recompute& recompute() const;
  // The same program with another choice of what runs again, so that the choice may depend on measurements of this one.
  // It has the same nodes and kernels. `reason` is shown in the report of the recompute pass.
  CompiledProgram with_recompute(Recompute recompute, std::string reason = {}) const;
  // Bytes alive at the peak of a training micro-batch, as `infer` declares them for the planned sizes, without
  // parameters, gradients and optimizer states.
  uint64_t planned_activation_bytes(Recompute recompute) const;
  // Reports of what each pass did or refused for that purpose, in order; at least one per pass.
  std::vector<PassReport> reports(Purpose purpose) const;

 private:
  friend CompiledProgram compile(Program recorded, CompileOptions options);
  struct Rewritten;   // the passes up to the providers pass, and the lifetimes if nothing runs again
  struct Recomputed;  // the recompute pass, and the lifetimes that follow from it

  CompiledProgram(std::shared_ptr<const Rewritten> rewritten, Recompute recompute, std::string reason);

  std::shared_ptr<const Rewritten> rewritten_;
  std::shared_ptr<const Recomputed> recomputed_;
};

CompiledProgram compile(const Recording& recording, CompileOptions options);
// The same without the record pass.
CompiledProgram compile(Program recorded, CompileOptions options);

// Compiles one block alone, to compare providers. The arguments are those of resolve_block.
ResolvedBlock compile_block(const Program& program, const ProgramLayout& layout, uint32_t type,
                            std::span<const uint8_t> slot_trainable, bool inputs_need_grad,
                            const ResolveOptions& options);

}  // namespace chassis
