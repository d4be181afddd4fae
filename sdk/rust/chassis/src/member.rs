//! Members, their instances, and the factory of a library.
use crate::error::{Code, Error, Result};
use crate::guard::{catch, guard, remember_places};
use crate::host::{Host, Level, text_of};
use crate::options::{Opt, Str};
use crate::sys;

/// One choice that a plugin adds, with the life cycle of `chassis/plugin.h`. It also implements the trait of its kind.
pub trait Member: Sized + Send + Sync + 'static {
    /// The name that the user writes after `plugin =`; the library's id if left out.
    const ID: &'static str = "";
    /// One line.
    const DOC: &'static str;
    const OPTIONS: &'static [Opt] = &[];

    /// \[control\] Options are already checked against the schema.
    fn create(host: Host) -> Result<Self>;

    /// \[control\] Check and reserve; nothing permanent.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }
    /// \[control\] From now on its kind's functions are called.
    fn activate(&mut self) -> Result<()> {
        Ok(())
    }
    /// \[control\] On return no thread, task or callback of the instance runs.
    fn quiesce(&mut self, _deadline_ns: u64) -> Result<()> {
        Ok(())
    }
    /// \[control\] From now on its kind's functions are not called.
    fn deactivate(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The table that the host sees, and the member that serves it.
#[repr(C)]
pub(crate) struct Instance<T> {
    table: sys::chassis_instance_t, // first, so that a pointer to it is one to the instance
    host: *const sys::chassis_host_t,
    member: T,
}

type GetInterface = unsafe extern "C" fn(*const sys::chassis_instance_t, sys::chassis_str_t) -> *const std::ffi::c_void;

impl<T: Member> Instance<T> {
    /// # Safety
    /// `host` outlives the instance. The tables that `get_interface` returns are for members of type T.
    pub(crate) unsafe fn create(
        host: *const sys::chassis_host_t,
        get_interface: GetInterface,
    ) -> Result<*mut sys::chassis_instance_t> {
        // SAFETY: the caller's promise.
        let member = T::create(unsafe { Host::new(host) })?;
        let table = sys::chassis_instance_t {
            struct_size: size_of::<sys::chassis_instance_t>() as u32,
            reserved0: 0,
            r#impl: std::ptr::null_mut(),
            get_interface: Some(get_interface),
            prepare: Some(Self::prepare),
            activate: Some(Self::activate),
            quiesce: Some(Self::quiesce),
            deactivate: Some(Self::deactivate),
            destroy: Some(Self::destroy),
        };
        Ok(Box::into_raw(Box::new(Instance { table, host, member })).cast())
    }

    /// Calls an [any] function with the member; errors and panics become a status.
    ///
    /// # Safety
    /// `this` is an instance made by `create` of this type.
    pub(crate) unsafe fn call(
        this: *mut sys::chassis_instance_t,
        body: impl FnOnce(&T) -> Result<()>,
    ) -> *mut sys::chassis_status_t {
        // SAFETY: the caller's promise.
        unsafe { Self::call_with_host(this, |member, _| body(member)) }
    }

    /// As `call`, for a body that calls functions of its arguments and gets statuses of the host from them.
    ///
    /// # Safety
    /// As `call`.
    pub(crate) unsafe fn call_with_host(
        this: *mut sys::chassis_instance_t,
        body: impl FnOnce(&T, *const sys::chassis_host_t) -> Result<()>,
    ) -> *mut sys::chassis_status_t {
        // SAFETY: the caller's promise; functions that change the member are [control], when nothing else runs.
        unsafe {
            let this = this.cast::<Self>();
            guard((*this).host, || body(&(*this).member, (*this).host))
        }
    }

    /// As `call`, for a [control] function, during which the host calls no other.
    ///
    /// # Safety
    /// As `call`.
    pub(crate) unsafe fn call_mut(
        this: *mut sys::chassis_instance_t,
        body: impl FnOnce(&mut T) -> Result<()>,
    ) -> *mut sys::chassis_status_t {
        // SAFETY: the caller's promise.
        unsafe {
            let this = this.cast::<Self>();
            guard((*this).host, || body(&mut (*this).member))
        }
    }

    unsafe extern "C" fn prepare(this: *mut sys::chassis_instance_t) -> *mut sys::chassis_status_t {
        // SAFETY: the host passes the instance that this function belongs to; so below.
        unsafe { Self::call_mut(this, T::prepare) }
    }
    unsafe extern "C" fn activate(this: *mut sys::chassis_instance_t) -> *mut sys::chassis_status_t {
        // SAFETY: as above.
        unsafe { Self::call_mut(this, T::activate) }
    }
    unsafe extern "C" fn quiesce(this: *mut sys::chassis_instance_t, deadline_ns: u64) -> *mut sys::chassis_status_t {
        // SAFETY: as above.
        unsafe { Self::call_mut(this, |member| member.quiesce(deadline_ns)) }
    }
    unsafe extern "C" fn deactivate(this: *mut sys::chassis_instance_t) -> *mut sys::chassis_status_t {
        // SAFETY: as above.
        unsafe { Self::call_mut(this, T::deactivate) }
    }
    unsafe extern "C" fn destroy(this: *mut sys::chassis_instance_t) {
        // SAFETY: the host gives the instance back, and its host table outlives it.
        let (instance, host) = unsafe {
            let instance = Box::from_raw(this.cast::<Self>());
            let host = Host::new(instance.host);
            (instance, host)
        };
        if let Err(error) = catch(|| drop(instance)) {
            let _ = host.log(Level::Error, &format!("its destructor {error}"));
        }
    }
}

/// A kind that this crate has a trait for: the create function of `T` in a library.
pub struct Kind {
    pub name: &'static str,
    /// The oldest host minor that has its tables.
    pub min_host_minor: u32,
}

/// The members of a library, and its factory.
pub struct Members<const N: usize>(pub [sys::chassis_member_t; N]);
pub struct Factory(pub sys::chassis_factory_t);
// SAFETY: constant texts and functions.
unsafe impl<const N: usize> Sync for Members<N> {}
unsafe impl Sync for Factory {}

impl<const N: usize> Members<N> {
    pub fn get(&'static self, i: u32) -> *const sys::chassis_member_t {
        self.0.get(i as usize).map_or(std::ptr::null(), std::ptr::from_ref)
    }
}

pub const fn describe<T: Member>(kind: &'static str, id: &'static str) -> sys::chassis_member_t {
    sys::chassis_member_t {
        struct_size: size_of::<sys::chassis_member_t>() as u32,
        num_options: T::OPTIONS.len() as u32,
        kind: Str::new(kind).0,
        id: Str::new(id).0,
        doc: Str::new(T::DOC).0,
        options: T::OPTIONS.as_ptr().cast(),
    }
}

/// The function of a kind that makes an instance.
pub type Create = unsafe fn(*const sys::chassis_host_t) -> Result<*mut sys::chassis_instance_t>;

/// # Safety
/// The arguments are those of the factory's create; `creates` has the functions of `members`.
pub unsafe fn create<const N: usize>(
    members: &Members<N>,
    creates: &[Create; N],
    host: *const sys::chassis_host_t,
    kind: sys::chassis_str_t,
    id: sys::chassis_str_t,
    out: *mut *mut sys::chassis_instance_t,
) -> *mut sys::chassis_status_t {
    remember_places();
    // SAFETY: the caller's promise; texts are borrowed for the call.
    unsafe {
        guard(host, || {
            let (kind, id) = (text_of(&kind), text_of(&id));
            let found = members.0.iter().position(|m| text_of(&m.kind) == kind && text_of(&m.id) == id);
            let Some(found) = found else {
                let name = format!("{}/{}", String::from_utf8_lossy(kind), String::from_utf8_lossy(id));
                return Err(Error::new(Code::NotFound, format!("this library has no member {name}")));
            };
            *out = creates[found](host)?;
            Ok(())
        })
    }
}

/// `plugin! { tokenizer: Words; "license=Apache-2.0", "file=words.txt" }` makes the manifest note, the factory and the
/// exported entry: for each member its kind and its type, then further lines of the manifest. Used once in a library.
#[macro_export]
macro_rules! plugin {
    ($($kind:ident: $member:ty),+ $(,)? $(; $($line:literal),* $(,)?)?) => {
        const _: () = {
            use $crate::{internal, manifest::{Manifest, Note}, sys};

            const ID: &str = match option_env!("CHASSIS_PLUGIN_ID") {
                Some(id) => id,
                None => env!("CARGO_CRATE_NAME"),
            };
            const fn id_of<T: $crate::Member>() -> &'static str {
                if T::ID.is_empty() { ID } else { T::ID }
            }
            const NUM_MEMBERS: usize = [$(stringify!($kind)),+].len();
            const MANIFEST: Manifest = Manifest {
                id: ID,
                version: env!("CARGO_PKG_VERSION"),
                git: match option_env!("CHASSIS_PLUGIN_GIT") {
                    Some(git) => git,
                    None => "",
                },
                min_host_minor: internal::newest([$($crate::$kind::KIND.min_host_minor),+]),
                members: &[$(($crate::$kind::KIND.name, id_of::<$member>())),+],
                lines: &[$($($line),*)?],
            };
            #[used]
            #[unsafe(link_section = ".note.chassis")]
            static NOTE: Note<{ MANIFEST.size() }> = Note::new(&MANIFEST);

            static MEMBERS: internal::Members<NUM_MEMBERS> =
                internal::Members([$(internal::describe::<$member>($crate::$kind::KIND.name, id_of::<$member>())),+]);
            static FACTORY: internal::Factory = internal::Factory(sys::chassis_factory_t {
                struct_size: size_of::<sys::chassis_factory_t>() as u32,
                num_members: NUM_MEMBERS as u32,
                member: Some(member),
                create: Some(create),
            });

            unsafe extern "C" fn member(i: u32) -> *const sys::chassis_member_t {
                MEMBERS.get(i)
            }
            unsafe extern "C" fn create(
                host: *const sys::chassis_host_t,
                kind: sys::chassis_str_t,
                id: sys::chassis_str_t,
                out: *mut *mut sys::chassis_instance_t,
            ) -> *mut sys::chassis_status_t {
                const CREATES: [internal::Create; NUM_MEMBERS] = [$($crate::$kind::create::<$member>),+];
                // SAFETY: the host's arguments; CREATES and MEMBERS have one order.
                unsafe { internal::create(&MEMBERS, &CREATES, host, kind, id, out) }
            }
            /// The only exported symbol.
            ///
            /// # Safety
            /// As `chassis/plugin.h` says.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn chassis_plugin_entry_v1(
                _host: *const sys::chassis_host_t,
                out: *mut *const sys::chassis_factory_t,
            ) -> *mut sys::chassis_status_t {
                // SAFETY: the host's pointer is valid for one factory.
                unsafe { *out = &raw const FACTORY.0 };
                std::ptr::null_mut()
            }
        };
    };
}

/// The largest of the minors that a library's kinds need.
pub const fn newest<const N: usize>(minors: [u32; N]) -> u32 {
    let (mut newest, mut i) = (sys::CHASSIS_ABI_OLDEST_MINOR, 0);
    while i < N {
        if minors[i] > newest {
            newest = minors[i];
        }
        i += 1;
    }
    newest
}
