//! Plugins for Chassis in Rust. A plugin is a `cdylib` that implements the trait of a kind and calls [`plugin!`];
//! `chassis_add_rust_plugin()` builds it. `sdk/examples/tokenizer_rust` is a complete one.
//!
//! Everything that the host calls may fail with [`Error`] or panic: both reach the host as a status.

mod error;
mod guard;
mod host;
pub mod manifest;
mod member;
pub mod objective;
mod options;
pub mod rows;
mod sized;
pub mod tokenizer;

pub use chassis_sys as sys;
pub use error::{Code, Error, Result};
pub use host::{Host, Level};
pub use member::Member;
pub use options::{Opt, Str};

/// For `plugin!`, not for plugins.
#[doc(hidden)]
pub mod internal {
    pub use crate::member::{Create, Factory, Members, create, describe, newest};
}
