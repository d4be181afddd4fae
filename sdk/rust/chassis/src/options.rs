//! The options of a member: declared once as a constant, checked by the host.
use crate::sys;

/// A constant text in the layout of the ABI.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Str(pub(crate) sys::chassis_str_t);

// SAFETY: only made of constant texts.
unsafe impl Send for Str {}
unsafe impl Sync for Str {}

impl Str {
    pub const fn new(text: &'static str) -> Self {
        Str(sys::chassis_str_t { ptr: text.as_ptr(), len: text.len() as u64 })
    }
}

/// One option: `Opt::int("size").default("8").range(1.0, 64.0).doc("…")`. Without a default the user must set it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Opt(sys::chassis_option_t);

// SAFETY: only made of constant texts.
unsafe impl Send for Opt {}
unsafe impl Sync for Opt {}

impl Opt {
    pub const fn bool(name: &'static str) -> Self {
        Opt::new(name, sys::CHASSIS_OPTION_BOOL)
    }
    pub const fn int(name: &'static str) -> Self {
        Opt::new(name, sys::CHASSIS_OPTION_INT)
    }
    pub const fn float(name: &'static str) -> Self {
        Opt::new(name, sys::CHASSIS_OPTION_FLOAT)
    }
    pub const fn string(name: &'static str) -> Self {
        Opt::new(name, sys::CHASSIS_OPTION_STRING)
    }
    pub const fn string_list(name: &'static str) -> Self {
        Opt::new(name, sys::CHASSIS_OPTION_STRING_LIST)
    }
    pub const fn int_list(name: &'static str) -> Self {
        Opt::new(name, sys::CHASSIS_OPTION_INT_LIST)
    }
    pub const fn float_list(name: &'static str) -> Self {
        Opt::new(name, sys::CHASSIS_OPTION_FLOAT_LIST)
    }
    /// Any TOML table, passed as JSON text.
    pub const fn table(name: &'static str) -> Self {
        Opt::new(name, sys::CHASSIS_OPTION_TABLE)
    }

    /// The default as JSON text: `"0.1"`, `"\"text\""`, `"[1, 2]"`.
    pub const fn default(mut self, json: &'static str) -> Self {
        self.0.default_json = Str::new(json).0;
        self
    }
    /// One line; shown by `chassis schema`.
    pub const fn doc(mut self, text: &'static str) -> Self {
        self.0.doc = Str::new(text).0;
        self
    }
    /// For a number, or every item of a list of numbers; both ends are allowed.
    pub const fn range(mut self, min: f64, max: f64) -> Self {
        (self.0.min, self.0.max, self.0.has_range) = (min, max, 1);
        self
    }
    /// The values that a string may have.
    pub const fn choices(mut self, choices: &'static [Str]) -> Self {
        self.0.num_choices = choices.len() as u32;
        self.0.choices = choices.as_ptr().cast();
        self
    }

    const fn new(name: &'static str, kind: u32) -> Self {
        Opt(sys::chassis_option_t {
            struct_size: size_of::<sys::chassis_option_t>() as u32,
            r#type: kind,
            name: Str::new(name).0,
            default_json: Str::new("").0,
            doc: Str::new("").0,
            min: 0.0,
            max: 0.0,
            has_range: 0,
            num_choices: 0,
            choices: std::ptr::null(),
        })
    }
}
