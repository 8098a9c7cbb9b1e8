// The guided experiment.
