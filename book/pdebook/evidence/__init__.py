"""What several chapters share: experiments and how they are run, attacks on theorems, trained models."""
