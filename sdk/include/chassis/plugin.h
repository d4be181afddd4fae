/* A plugin: one exported function, a manifest note, and members that the host creates instances of. */
#ifndef CHASSIS_PLUGIN_H
#define CHASSIS_PLUGIN_H

#include "chassis/abi.h"
#include "chassis/host.h"
#include "chassis/service/options.h"
#include "chassis/status.h"

/* Manifest: an ELF note (name "Chassis", type 1) in section .note.chassis, which the host reads without dlopen. Its
 * descriptor is UTF-8 text, one "key=value" per line:
 *   chassis-manifest=1            first line
 *   id=sdpa                       of the library, sdpa.so; members may have other ids; "auto" is not an id
 *   version=0.1.0                 semver
 *   abi=0.20                      ABI major.minor that it was built with
 *   abi-min-host=0.20             oldest host minor that it works with
 *   tier=T0|T1|T2                 T0: these tables only; T1: also LibTorch's stable C shim; T2: LibTorch C++
 *   torch=2.11.0                  T1: oldest LibTorch; T2: the exact version. Absent for T0
 *   member=ops/sdpa               kind/id, once for every member, in the order of the factory
 *   requires=chassis.dispatch/1   a service that it needs; repeated. A host without it refuses the file, so that
 *                                 get_service never returns NULL for it
 *   architecture=LlamaForCausalLM model members: value of config.json "architectures"; repeated
 *   file=tokenizer.json           tokenizer members: a file of a model directory from which they are opened. rows
 *                                 members: the names of the files that they read, with '*', "*.parquet". Repeated
 *   op=aten::mm(Tensor self, Tensor mat2) -> Tensor     an operator it calls, with its schema; repeated
 *   cuda=13                       CUDA major, absent if none
 *   sm=80,90a,100f,ptx90          what the kernels were compiled for: devices of that major, from that minor on;
 *                                 a: only that one; f: its family; ptx: also all later ones. Other types of devices
 *                                 have keys of their own
 *   swappable=1                   an instance may be replaced between two steps: the host keeps all that matters
 *   oracle=1                      its members are the reference that others of their kind are compared with
 *   license=Apache-2.0
 *   git=0123abcd                  what it was built from
 * Unknown keys are ignored (`chassis plugins check` reports them); a missing required key refuses the file. */
#define CHASSIS_NOTE_SECTION ".note.chassis"
#define CHASSIS_NOTE_NAME "Chassis"
#define CHASSIS_NOTE_TYPE 1u

/* Defines the note from one string literal that ends in a newline. Use it once in a library. */
#define CHASSIS_MANIFEST(text)                                                              \
  __attribute__((used, aligned(4), section(CHASSIS_NOTE_SECTION))) static const struct {    \
    uint32_t name_bytes, text_bytes, type;                                                  \
    char name[8];                                                                           \
    char body[(sizeof(text) + 3u) & ~3u];                                                   \
  } chassis_manifest_note = {8u, (uint32_t)((sizeof(text) + 3u) & ~3u), CHASSIS_NOTE_TYPE, CHASSIS_NOTE_NAME, text}

/* One member in use. The host enforces the order
 *   create → prepare → activate → … → quiesce → deactivate → destroy
 * and, for a replacement, quiesce → deactivate of the old after activate of the new. Every hook but destroy may be
 * NULL. */
typedef struct chassis_instance {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* [any] The interface table, such as "chassis.ops/1"; NULL if not offered. Valid until destroy. */
  const void* (*get_interface)(const struct chassis_instance* self, chassis_str_t id);
  /* [control] Check and reserve; nothing permanent. */
  chassis_status_t* (*prepare)(struct chassis_instance* self);
  /* [control] From now on its interface is called. */
  chassis_status_t* (*activate)(struct chassis_instance* self);
  /* [control] On return no thread, task or callback of the instance runs. */
  chassis_status_t* (*quiesce)(struct chassis_instance* self, uint64_t deadline_ns);
  /* [control] From now on its interface is not called. */
  chassis_status_t* (*deactivate)(struct chassis_instance* self);
  /* [control] Frees the instance; cannot fail. Required. */
  void (*destroy)(CHASSIS_STOLEN struct chassis_instance* self);
} chassis_instance_t;
#define CHASSIS_INSTANCE_V1_SIZE 64u

/* A member's name, and the options that it accepts in its TOML table. */
typedef struct chassis_member {
  uint32_t struct_size;
  uint32_t num_options;
  chassis_str_t kind; /* "ops", "model", … : a header in chassis/kind/ */
  chassis_str_t id;   /* what the user writes after plugin = */
  chassis_str_t doc;  /* one line */
  const chassis_option_t* options; /* an array; its stride is the struct_size of the first */
} chassis_member_t;
#define CHASSIS_MEMBER_V1_SIZE 64u

typedef struct chassis_factory {
  uint32_t struct_size;
  uint32_t num_members;
  /* [any] Static; i < num_members. */
  const chassis_member_t* (*member)(uint32_t i);
  /* [control] A new instance of member `id`. `host` outlives it. Options come through chassis.options/1 and are
   * already checked against the schema. On error *out stays untouched. */
  chassis_status_t* (*create)(const chassis_host_t* host, chassis_str_t kind, chassis_str_t id,
                              CHASSIS_OWNED chassis_instance_t** out);
} chassis_factory_t;
#define CHASSIS_FACTORY_V1_SIZE 24u

/* [control] The only exported symbol. Stores a static factory in *out. Called once after dlopen; must have no side
 * effects. */
CHASSIS_EXPORT chassis_status_t* chassis_plugin_entry_v1(const chassis_host_t* host, const chassis_factory_t** out);
#define CHASSIS_ENTRY_SYMBOL "chassis_plugin_entry_v1"

#endif
