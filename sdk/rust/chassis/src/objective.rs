//! Kind "objective": `chassis/kind/objective.h` has the contract of every function.
use crate::error::{Code, Error, Result};
use crate::host::text_of;
use crate::member::{Instance, Kind, Member};
use crate::options::Str;
use crate::sized::{read_sized, write_sized};
use crate::sys;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

pub const KIND: Kind = Kind { name: "objective", min_host_minor: sys::CHASSIS_ABI_OLDEST_MINOR };

/// A loss from the log-probabilities or scores of sequences. Illegal combinations of options are errors of `create`.
pub trait Objective: Member {
    /// True if `prepare_step` is offered.
    const PREPARES: bool = false;
    /// True if `metrics` is offered; else metric i is sums\[2i\] ÷ sums\[2i + 1\], as [`Sums::add_metric`] adds them.
    const COMPUTES_METRICS: bool = false;

    /// \[control\] Always the same; its names and arrays are constants or belong to the member.
    fn describe(&self) -> Description<'_>;
    /// \[step\] With GLOBAL. Writes `state` and, for each sequence, `sequence_state`, which are zero before;
    /// deterministic.
    fn prepare_step(&self, _global: &Batch<'_>, _state: &mut [f64], _sequence_state: &mut [f64]) -> Result<()> {
        Err(not_offered("prepare_step"))
    }
    /// \[step\] The sums of parts of a batch are those of the whole.
    fn evaluate(&self, batch: &Batch<'_>, out: &mut Sums<'_>) -> Result<()>;
    /// \[step\] From the sums over any number of batches to one value for each metric; NaN: not known.
    fn metrics(&self, _sums: &[f64], _out: &mut [f64]) -> Result<()> {
        Err(not_offered("metrics"))
    }
}

/// A part of the loss, divided by a count over the global batch: `Term::new("hinge", sys::CHASSIS_COUNT_UNITS)`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Term(sys::chassis_objective_term_t);

/// `Metric::new("rewards/accuracies", sys::CHASSIS_BETTER_HIGHER)`
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Metric(sys::chassis_objective_metric_t);

// SAFETY: only made of constant texts.
unsafe impl Send for Term {}
unsafe impl Sync for Term {}
unsafe impl Send for Metric {}
unsafe impl Sync for Metric {}

impl Term {
    pub const fn new(name: &'static str, count: u32) -> Self {
        Term(sys::chassis_objective_term_t { name: Str::new(name).0, count, reserved0: 0 })
    }
}

impl Metric {
    pub const fn new(name: &'static str, better: u32) -> Self {
        Metric(sys::chassis_objective_metric_t { name: Str::new(name).0, better, reserved0: 0 })
    }
}

/// As `chassis_objective_desc_t`, which describes each member. Default: log-probabilities of pairs.
#[derive(Clone, Copy)]
pub struct Description<'a> {
    /// `sys::CHASSIS_OBJECTIVE_LOGPS` or `_SCORES`
    pub values: u32,
    /// `sys::CHASSIS_OBJECTIVE_PAIRS`, `_LABELLED`, `_TEXTS`, `_ROLLOUTS` or `_ANSWERS`
    pub units: u32,
    /// Flags `sys::CHASSIS_OBJECTIVE_REFERENCE`, …
    pub needs: u32,
    pub num_scores: u32,
    pub num_targets: u32,
    pub num_classes: u32,
    pub terms: &'a [Term],
    pub metrics: &'a [Metric],
    /// None: two for each metric.
    pub num_sums: Option<u32>,
    pub state_size: u32,
    pub state_per_sequence: u32,
    pub top_k: u32,
    pub temperature: f64,
}

impl Default for Description<'_> {
    fn default() -> Self {
        Description {
            values: sys::CHASSIS_OBJECTIVE_LOGPS,
            units: sys::CHASSIS_OBJECTIVE_PAIRS,
            needs: 0,
            num_scores: 0,
            num_targets: 0,
            num_classes: 0,
            terms: &[],
            metrics: &[],
            num_sums: None,
            state_size: 0,
            state_per_sequence: 0,
            top_k: 0,
            temperature: 0.0,
        }
    }
}

impl Description<'_> {
    fn num_sums(&self) -> usize {
        self.num_sums.map_or(2 * self.metrics.len(), |n| n as usize)
    }
}

/// The sequences of a batch; an array that does not apply is empty. Rows of `target`, `score` and `sequence_state` have
/// as many values as the description says, and those of `teacher_logp` and `top_logp` have `top_k`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    pub role: &'a [u32],
    pub unit: &'a [u64],
    pub target: &'a [f64],
    pub margin: &'a [f64],
    pub logp: &'a [f64],
    pub reference_logp: &'a [f64],
    pub length: &'a [f64],
    pub score: &'a [f64],
    /// Tokens of sequence i are `first_token[i]..first_token[i + 1]`.
    pub first_token: &'a [u64],
    pub token_logp: &'a [f64],
    pub reference_token_logp: &'a [f64],
    pub old_token_logp: &'a [f64],
    pub state: &'a [f64],
    pub sequence_state: &'a [f64],
    /// One for each term; [`Sums`] multiplies gradients by it.
    pub term_weight: &'a [f64],
    pub teacher_count: &'a [f64],
    pub teacher_logp: &'a [f64],
    pub top_logp: &'a [f64],
}

impl<'a> Batch<'a> {
    pub fn num_sequences(&self) -> usize {
        self.role.len()
    }
    /// The sequences of each unit.
    pub fn units(&self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let (unit, mut end) = (self.unit, 0);
        std::iter::from_fn(move || {
            let begin = end;
            let number = unit.get(begin)?;
            end += unit[begin..].iter().take_while(|&other| other == number).count();
            Some(begin..end)
        })
    }
    /// PAIRS: the chosen and the rejected sequence of each.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        (0..self.num_sequences() / 2).map(|pair| (2 * pair, 2 * pair + 1))
    }

    /// # Safety
    /// `raw` is a batch of the description `d` that is borrowed for `'a`.
    unsafe fn read(raw: *const sys::chassis_objective_batch_t, d: &Description<'_>) -> Result<Self> {
        // SAFETY: the caller's promise; arrays that do not apply are null.
        unsafe {
            let raw = read_sized(raw)?;
            let (sequences, tokens) = (raw.num_sequences as usize, raw.num_tokens as usize);
            Ok(Batch {
                role: slice(raw.role, sequences),
                unit: slice(raw.unit, sequences),
                target: slice(raw.target, sequences * d.num_targets as usize),
                margin: slice(raw.margin, sequences),
                logp: slice(raw.logp, sequences),
                reference_logp: slice(raw.reference_logp, sequences),
                length: slice(raw.length, sequences),
                score: slice(raw.score, sequences * d.num_scores as usize),
                first_token: slice(raw.first_token, sequences + 1),
                token_logp: slice(raw.token_logp, tokens),
                reference_token_logp: slice(raw.reference_token_logp, tokens),
                old_token_logp: slice(raw.old_token_logp, tokens),
                state: slice(raw.state, d.state_size as usize),
                sequence_state: slice(raw.sequence_state, sequences * d.state_per_sequence as usize),
                term_weight: slice(raw.term_weight, d.terms.len()),
                teacher_count: slice(raw.teacher_count, tokens),
                teacher_logp: slice(raw.teacher_logp, tokens * d.top_k as usize),
                top_logp: slice(raw.top_logp, tokens * d.top_k as usize),
            })
        }
    }
}

/// Adds up the terms, metrics and gradients of a batch. Derivatives are those of a term's sum: they are multiplied by
/// the weight of the term here, and dropped if only values are asked for.
pub struct Sums<'a> {
    terms: &'a mut [f64],
    sums: &'a mut [f64],
    grad_logp: &'a mut [f64],
    grad_score: &'a mut [f64],
    grad_token_logp: &'a mut [f64],
    grad_top_logp: &'a mut [f64],
    weight: &'a [f64],
}

impl Sums<'_> {
    pub fn add_term(&mut self, term: usize, value: f64) {
        self.terms[term] += value;
    }
    pub fn add_grad_logp(&mut self, term: usize, sequence: usize, derivative: f64) {
        add(self.grad_logp, sequence, self.weight[term] * derivative);
    }
    /// `score` counts all scores of the batch.
    pub fn add_grad_score(&mut self, term: usize, score: usize, derivative: f64) {
        add(self.grad_score, score, self.weight[term] * derivative);
    }
    /// `token` counts all tokens of the batch. A token's gradient is this plus that of its sequence.
    pub fn add_grad_token_logp(&mut self, term: usize, token: usize, derivative: f64) {
        add(self.grad_token_logp, token, self.weight[term] * derivative);
    }
    /// `entry` counts the `top_k` entries of all tokens of the batch.
    pub fn add_grad_top_logp(&mut self, term: usize, entry: usize, derivative: f64) {
        add(self.grad_top_logp, entry, self.weight[term] * derivative);
    }
    /// For members that do not compute metrics themselves: the metric is Σ sum ÷ Σ count.
    pub fn add_metric(&mut self, metric: usize, sum: f64, count: f64) {
        self.sums[2 * metric] += sum;
        self.sums[2 * metric + 1] += count;
    }
    pub fn sums(&mut self) -> &mut [f64] {
        self.sums
    }

    /// # Safety
    /// `raw` is the result for `batch`, which has the description `d`, and is borrowed for `'a`.
    unsafe fn read<'a>(
        raw: *const sys::chassis_objective_result_t,
        batch: &Batch<'a>,
        d: &Description<'_>,
    ) -> Result<Sums<'a>> {
        // SAFETY: the caller's promise; arrays that are not wanted are null, and none overlap.
        unsafe {
            let raw = read_sized(raw)?;
            Ok(Sums {
                terms: slice_mut(raw.terms, d.terms.len()),
                sums: slice_mut(raw.sums, d.num_sums()),
                grad_logp: slice_mut(raw.grad_logp, batch.num_sequences()),
                grad_score: slice_mut(raw.grad_score, batch.num_sequences() * d.num_scores as usize),
                grad_token_logp: slice_mut(raw.grad_token_logp, batch.token_logp.len()),
                grad_top_logp: slice_mut(raw.grad_top_logp, batch.top_logp.len()),
                weight: batch.term_weight,
            })
        }
    }
}

fn add(gradients: &mut [f64], at: usize, value: f64) {
    if !gradients.is_empty() {
        gradients[at] += value;
    }
}

/// For `plugin!`.
///
/// # Safety
/// `host` outlives the instance.
#[doc(hidden)]
pub unsafe fn create<T: Objective>(host: *const sys::chassis_host_t) -> Result<*mut sys::chassis_instance_t> {
    // SAFETY: the caller's promise.
    unsafe { Instance::<T>::create(host, Table::<T>::get_interface) }
}

fn not_offered(function: &str) -> Error {
    Error::new(Code::Unimplemented, format!("this objective does not offer {function}"))
}

/// # Safety
/// `items` is null, or `count` items that are borrowed for `'a`.
unsafe fn slice<'a, T>(items: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if items.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(items, count) } }
}

/// # Safety
/// As [`slice`], and nothing else uses the items.
unsafe fn slice_mut<'a, T>(items: *mut T, count: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    if items.is_null() { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(items, count) } }
}

struct Table<T>(PhantomData<T>);

type This = *mut sys::chassis_instance_t;
type Status = *mut sys::chassis_status_t;

impl<T: Objective> Table<T> {
    const TABLE: sys::chassis_objective_t = sys::chassis_objective_t {
        struct_size: size_of::<sys::chassis_objective_t>() as u32,
        reserved0: 0,
        describe: Some(Self::describe),
        prepare: if T::PREPARES { Some(Self::prepare) } else { None },
        evaluate: Some(Self::evaluate),
        metrics: if T::COMPUTES_METRICS { Some(Self::metrics) } else { None },
    };

    unsafe extern "C" fn get_interface(_: *const sys::chassis_instance_t, id: sys::chassis_str_t) -> *const c_void {
        // SAFETY: the text is borrowed for the call.
        if unsafe { text_of(&id) } == sys::CHASSIS_OBJECTIVE_ID.as_bytes() {
            std::ptr::from_ref(const { &Self::TABLE }).cast()
        } else {
            std::ptr::null()
        }
    }

    // SAFETY of all below: the host passes the instance that the table belongs to, and borrows its arguments for the
    // call.

    unsafe extern "C" fn describe(this: This, out: *mut sys::chassis_objective_desc_t) -> Status {
        unsafe {
            Instance::<T>::call(this, |objective| {
                let d = objective.describe();
                let ours = sys::chassis_objective_desc_t {
                    struct_size: 0,
                    values: d.values,
                    units: d.units,
                    needs: d.needs,
                    num_scores: d.num_scores,
                    num_targets: d.num_targets,
                    num_terms: d.terms.len() as u32,
                    num_metrics: d.metrics.len() as u32,
                    terms: d.terms.as_ptr().cast(),
                    metrics: d.metrics.as_ptr().cast(),
                    num_sums: d.num_sums() as u32,
                    state_size: d.state_size,
                    state_per_sequence: d.state_per_sequence,
                    num_classes: d.num_classes,
                    top_k: d.top_k,
                    reserved0: 0,
                    temperature: d.temperature,
                };
                write_sized(&ours, out)
            })
        }
    }

    unsafe extern "C" fn prepare(
        this: This,
        global: *const sys::chassis_objective_batch_t,
        state: *mut f64,
        sequence_state: *mut f64,
    ) -> Status {
        unsafe {
            Instance::<T>::call(this, |objective| {
                let d = objective.describe();
                let batch = Batch::read(global, &d)?;
                let state = slice_mut(state, d.state_size as usize);
                let count = batch.num_sequences() * d.state_per_sequence as usize;
                objective.prepare_step(&batch, state, slice_mut(sequence_state, count))
            })
        }
    }

    unsafe extern "C" fn evaluate(
        this: This,
        batch: *const sys::chassis_objective_batch_t,
        out: *const sys::chassis_objective_result_t,
    ) -> Status {
        unsafe {
            Instance::<T>::call(this, |objective| {
                let d = objective.describe();
                let batch = Batch::read(batch, &d)?;
                objective.evaluate(&batch, &mut Sums::read(out, &batch, &d)?)
            })
        }
    }

    unsafe extern "C" fn metrics(this: This, sums: *const f64, out: *mut f64) -> Status {
        unsafe {
            Instance::<T>::call(this, |objective| {
                let d = objective.describe();
                objective.metrics(slice(sums, d.num_sums()), slice_mut(out, d.metrics.len()))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_runs_of_one_number() {
        let batch = Batch { role: &[0; 5], unit: &[4, 4, 7, 9, 9], ..Batch::default() };
        assert_eq!(batch.units().collect::<Vec<_>>(), [0..2, 2..3, 3..5]);
        assert_eq!(Batch::default().units().count(), 0);
    }

    #[test]
    fn gradients_are_weighted_and_dropped_if_not_wanted() {
        let (mut terms, mut sums, mut grads) = ([0.0; 2], [0.0; 4], [0.0; 3]);
        let mut out = Sums {
            terms: &mut terms,
            sums: &mut sums,
            grad_logp: &mut grads,
            grad_score: &mut [],
            grad_token_logp: &mut [],
            grad_top_logp: &mut [],
            weight: &[0.5, 0.25],
        };
        out.add_term(1, 3.0);
        out.add_grad_logp(1, 2, 8.0);
        out.add_grad_score(0, 7, 1.0);
        out.add_metric(1, 5.0, 2.0);
        assert_eq!((terms, sums, grads), ([0.0, 3.0], [0.0, 0.0, 5.0, 2.0], [0.0, 0.0, 2.0]));
    }
}
