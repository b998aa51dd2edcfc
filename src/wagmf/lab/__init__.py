"""The lab: experiments, their records, and the figures made from records."""
