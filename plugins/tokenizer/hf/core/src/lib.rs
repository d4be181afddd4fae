//! The tokenizers and chat templates of HF model directories: ids and text exactly as transformers makes them, with
//! byte offsets and spans. It starts no threads but in `train`, and knows nothing of Chassis.
mod byte_level;
mod chat;
mod directory;
mod error;
mod guarded;
mod jinja;
mod json;
mod limits;
mod marks;
mod methods;
mod pipeline;
mod python;
mod sha256;
mod spans;
mod special_tokens;
mod strftime;
mod tokenizer;
mod tool_calls;
mod train;
mod wide;

pub use chat::{Chat, Rendered, Span, LEAF_CONTENT, LEAF_GENERATION, LEAF_REASONING, LEAF_TOOL_CALLS};
pub use error::{Error, ErrorKind, Result};
pub use tokenizer::{Encoded, Info, Tokenizer, TOKEN_ADDED, TOKEN_SPECIAL, TOKEN_UNUSED};
