//! Errors of this crate: a kind that the ABI has a code for, and a message for the user.
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    InvalidArgument,
    FailedPrecondition,
    OutOfRange,
    NotFound,
    Internal,
}

#[derive(Clone, Debug)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::InvalidArgument, message: message.into() }
    }

    pub(crate) fn precondition(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::FailedPrecondition, message: message.into() }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Internal, message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
