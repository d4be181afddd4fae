// A hinge on the difference of the mean log-probabilities of two answers: max(0, margin - β (chosen - rejected)). The
// margin of a pair, if the data have one, is added to that of the option.
use chassis::objective::{Batch, Description, Metric, Objective, Sums, Term};
use chassis::{sys, Host, Member, Opt, Result};

struct Hinge {
    margin: f64,
    beta: f64,
}

impl Member for Hinge {
    const DOC: &'static str = "a hinge on the difference of mean log-probabilities";
    const OPTIONS: &'static [Opt] = &[
        Opt::float("margin").default("1.0").range(0.0, 100.0).doc("difference at which the loss is 0"),
        Opt::float("beta").default("2.0").range(0.001, 1000.0).doc("factor of the difference"),
    ];

    fn create(host: Host) -> Result<Self> {
        Ok(Hinge { margin: host.option_float("margin")?, beta: host.option_float("beta")? })
    }
}

impl Objective for Hinge {
    fn describe(&self) -> Description<'_> {
        const TERMS: &[Term] = &[Term::new("hinge", sys::CHASSIS_COUNT_UNITS)];
        const METRICS: &[Metric] = &[
            Metric::new("rewards/accuracies", sys::CHASSIS_BETTER_HIGHER),
            Metric::new("rewards/margins", sys::CHASSIS_BETTER_HIGHER),
        ];
        Description { needs: sys::CHASSIS_OBJECTIVE_MARGINS, terms: TERMS, metrics: METRICS, ..Description::default() }
    }

    fn evaluate(&self, batch: &Batch<'_>, out: &mut Sums<'_>) -> Result<()> {
        for (chosen, rejected) in batch.pairs() {
            let reward = |i: usize| self.beta * batch.logp[i] / batch.length[i];
            let difference = reward(chosen) - reward(rejected);
            let loss = self.margin + batch.margin[chosen] - difference;
            if loss > 0.0 {
                out.add_term(0, loss);
                out.add_grad_logp(0, chosen, -self.beta / batch.length[chosen]);
                out.add_grad_logp(0, rejected, self.beta / batch.length[rejected]);
            }
            out.add_metric(0, if difference > 0.0 { 1.0 } else { 0.0 }, 1.0);
            out.add_metric(1, difference, 1.0);
        }
        Ok(())
    }
}

chassis::plugin! {
    objective: Hinge;
    "requires=chassis.options/1", "license=Apache-2.0"
}
