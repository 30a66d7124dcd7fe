"""Model runners: what one step of an autoregressive stage computes, behind one interface."""
