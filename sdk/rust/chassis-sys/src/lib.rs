//! The C ABI between host and plugin, as defined and commented in `chassis/*.h`. Plugins use the crate `chassis`, which
//! is safe.
#![no_std]
#![allow(non_camel_case_types)]

/// A struct of the ABI, with the size, alignment and offsets that C compilers give it.
macro_rules! abi_struct {
    ($name:ident $size:literal $align:literal { $($offset:literal $bytes:literal $field:ident: $type:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name {
            $(pub $field: $type,)*
        }
        const _: () = {
            assert!(size_of::<$name>() == $size && align_of::<$name>() == $align);
            $(assert!(core::mem::offset_of!($name, $field) == $offset && size_of::<$type>() == $bytes);)*
        };
    };
}

/// A union of the ABI.
macro_rules! abi_union {
    ($name:ident $size:literal { $($bytes:literal $field:ident: $type:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub union $name {
            $(pub $field: $type,)*
        }
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(size_of::<$type>() == $bytes);)*
        };
    };
}

/// A type whose contents only its owner knows.
macro_rules! abi_opaque {
    ($name:ident) => {
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    };
}

macro_rules! abi_grows {
    ($name:ident, $first_size:ident) => {
        // SAFETY: begins with struct_size; numbers, pointers and optional functions may all be zero.
        unsafe impl Growable for $name {
            const NAME: &'static str = stringify!($name);
            const FIRST_SIZE: usize = $first_size as usize;
        }
    };
}

/// A struct that begins with `struct_size: u32`, and to which later minors append members.
///
/// # Safety
/// The struct begins with `struct_size`, is `repr(C)`, and all bytes zero are a valid value.
pub unsafe trait Growable: Copy {
    const NAME: &'static str;
    /// The size of its first version; a shorter struct is refused.
    const FIRST_SIZE: usize;
}

#[rustfmt::skip]
mod abi;
pub use abi::*;
