"""What a registry could have beside what it has, what each addition would bring, and which pay."""
